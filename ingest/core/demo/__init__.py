"""A simulated month of a GPU cluster, as configuration and events: what `load_demo_month` loads.

Deterministic and pure: a discrete-event simulation of schedulers (scheduler.py) is fed by tenants (cast.py, demand.py)
and troubled by incidents (incidents.py); what it reports (record.py) and the calls to the shared services
(traffic.py) become CloudEvents in the order in which a cluster would deliver them (delivery.py).
"""

from ingest.core.demo.delivery import Delivered, batches
from ingest.core.demo.month import DemoMonth, DemoSize, generate

__all__ = ["Delivered", "DemoMonth", "DemoSize", "batches", "generate"]
