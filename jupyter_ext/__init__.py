"""The JupyterLab server extension that brokers shared devices among notebook kernels."""
