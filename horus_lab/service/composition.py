"""Puts a broker service together from settings. The heavy parts are imported when it is called."""

from __future__ import annotations

from horus_lab.service.broker_service import BrokerService
from horus_lab.service.parts import Parts
from horus_lab.service.settings import ServiceSettings


def build_service(settings: ServiceSettings) -> BrokerService:
    """A service as the settings describe it, its store open and locked; `start` it next.

    Raises:
        ConfigurationError: a setting cannot be understood.
        StoreUnavailable: the store is in use, damaged, newer than this version, or out of reach.
        DeviceUnavailable: the devices asked for are not here.
    """
    settings.checked()
    from horus_lab.devices.attribution import attribute
    from horus_lab.devices.choice import choose_probe
    from horus_lab.devices.processes import PidfdWatcher, PsutilProcessTable
    from horus_lab.interference import FittedInterference
    from horus_lab.policy import policy_named
    from horus_lab.predict import ShippedPredictor
    from horus_lab.store import SqlStore

    interference = FittedInterference.load()
    table = PsutilProcessTable()
    policy = policy_named(settings.policy, interference)
    predictor = ShippedPredictor.load()
    probe, notices = choose_probe(settings.devices)
    store = SqlStore.open(settings.store_url)
    return BrokerService(
        Parts(
            store=store,
            probe=probe,
            table=table,
            attribute=attribute,
            watcher=PidfdWatcher(table),
            predictor=predictor,
            policy=policy,
            interference=interference,
            notices=(*notices, *predictor.notices),
        ),
        settings,
    )
