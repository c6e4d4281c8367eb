"""Collectors pull from where facts are: Prometheus, the Kubernetes API, Slurm (events.md, Doors).

A collector brings native records, step by step, and says where the next step goes on. Its adapter turns them into
events, and `running.collect` keeps both, the events and the place, in one transaction: a crash loses no window and
books none twice.
"""
