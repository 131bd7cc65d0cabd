"""The JupyterLab server extension that brokers shared devices among notebook kernels.

Enable it as `jupyter_ext` (`jupyter server extension enable jupyter_ext`); configure it as
`c.HorusLab` in `jupyter_server_config.py`.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from jupyter_ext.app import HorusLab

    return [{"module": "jupyter_ext", "app": HorusLab}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "horus-lab"}]
