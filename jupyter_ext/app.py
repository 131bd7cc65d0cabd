"""The server extension: settings, life cycle, and the place where all parts are put together."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from jupyter_core.paths import jupyter_data_dir
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from traitlets import Bool, Float, Unicode, default

from horus_lab.errors import HorusError
from jupyter_ext.access import Access, server_owner
from jupyter_ext.address import Listening, Publication
from jupyter_ext.backend import Backend
from jupyter_ext.events import event_routes
from jupyter_ext.handlers import other_routes, rest_routes
from jupyter_ext.wiring import Wiring

_DISABLED = "Horus Lab is switched off on this server."
_ON_THE_CPU = ("cpu", "sim")
_STOPPED = "Horus Lab has stopped with this server."


class HorusLab(ExtensionApp):
    """Shared devices for notebooks: predicted, co-located and queued."""

    name = "horus_lab"
    load_other_extensions = True

    enabled = Bool(True, help="Whether this server has a broker at all.").tag(config=True)

    devices = Unicode(
        help="""Which devices to share: `auto` (NVIDIA GPUs; the host's CPU where there is
        none), `nvml`, `cpu`, or simulated ones such as `sim:2xA100-80GB`. By default the
        environment's HORUS_DEVICES, else `auto`.""",
    ).tag(config=True)

    store_url = Unicode(
        help="""SQLAlchemy URL of the store. By default SQLite in Jupyter's data directory.""",
    ).tag(config=True)

    policy = Unicode(
        "",
        help="""Name of the queueing policy: `horus-lab`, `horus`, `exclusive` or `fifo`; empty
        for `horus-lab`.""",
    ).tag(config=True)

    sample_seconds = Float(1.0, help="Seconds between two looks at the devices.").tag(config=True)

    capability = Unicode(
        "",
        help="""The secret by which kernels are known. Minted at every start; set it only where
        kernels outlive their server, and keep the file that holds it private.""",
    ).tag(config=True)

    @default("devices")
    def _default_devices(self) -> str:
        return os.environ.get("HORUS_DEVICES", "") or "auto"

    @default("store_url")
    def _default_store_url(self) -> str:
        return f"sqlite:///{Path(jupyter_data_dir(), 'horus', 'horus.sqlite3')}"

    wiring: Wiring
    _publication: Publication
    _starting: asyncio.Task[None] | None = None
    _backend: Backend | None = None

    def initialize_handlers(self) -> None:
        """Register the routes. Nothing here touches a driver, a store or an address."""
        self.wiring = Wiring(Access(server_owner(), self.capability))
        self._publication = Publication(os.environ)
        self.handlers.extend(rest_routes(self.wiring))
        self.handlers.extend(event_routes(self.wiring))
        self.handlers.extend(other_routes(self.wiring))

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        """The port is bound now: publish the address, then start the broker beside the server."""
        if not self.enabled:
            self.wiring.failed(_DISABLED, hint="Set c.HorusLab.enabled = True to use it.")
            return
        self._publication.publish(listening(serverapp), self.wiring.access.capability)
        # The sidebar tells the jobs of the person it is served to from others'.
        page_config = serverapp.web_app.settings.setdefault("page_config_data", {})
        page_config["horusOwner"] = self.wiring.access.owner
        # Kernels may start before the devices are known; sleeping is the harmless choice.
        self._publication.let_waiting_threads_sleep()
        self._starting = asyncio.create_task(self._start_broker())

    async def _start_broker(self) -> None:
        try:
            backend = await self.open_backend()
        except HorusError as error:
            self.wiring.failed(error.message, hint=error.hint)
            self.log.error("Horus Lab: no broker on this server: %s", error)
        except Exception as error:
            self.wiring.failed(
                f"Horus Lab could not start: {type(error).__name__}: {error}",
                hint="The Jupyter server's log has the details.",
            )
            self.log.exception("Horus Lab: no broker on this server")
        else:
            self._backend = backend
            report = await backend.health()
            if report.probe not in _ON_THE_CPU:
                self._publication.let_waiting_threads_spin()
            self.wiring.ready(backend)
            self.log.info(
                "Horus Lab %s: %d device(s) through %s",
                report.version,
                report.devices,
                report.probe,
            )

    async def open_backend(self) -> Backend:
        """The broker that these settings describe, started.

        Raises:
            HorusError: it cannot start, with the reason.
        """
        from horus_lab.service.settings import Pace, ServiceSettings
        from jupyter_ext.local import open_local

        return await open_local(
            ServiceSettings(
                store_url=self.store_url,
                devices=self.devices,
                policy=self.policy,
                pace=Pace(sample=self.sample_seconds),
            )
        )

    async def stop_extension(self) -> None:
        """Let waiters go, write everything down, take the address back."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        backend, self._backend = self._backend, None
        self.wiring.failed(_STOPPED)
        self._publication.withdraw()
        if backend is not None:
            await backend.close()


def listening(serverapp: ServerApp) -> Listening:
    """Where the server really listens; only true once it is bound."""
    return Listening(
        ip=serverapp.ip,
        port=serverapp.port,
        base_url=serverapp.base_url,
        socket_path=serverapp.sock,
        certificate=serverapp.certfile,
    )
