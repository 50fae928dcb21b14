"""What Prometheus reads of the admission service: the names, units and labels of ``/metrics``."""

from control.metrics.service import ServiceMetrics

__all__ = ["ServiceMetrics"]
