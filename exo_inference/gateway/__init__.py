"""The gateway: the only way to an engine. Bearer keys, least-pending routing, usage; own process.

`python -m exo_inference.gateway --state-dir DIR` serves `/<deployment>/v1/...` from the routing
table that the controller writes (`routes.json`). It never calls the controller and goes on with
its last table while the controller is down. How a request passes through the modules::

    connections.py  parses HTTP and refuses what is none
    app.py        parses the address, checks the key (keys.py), reads the body (uploads.py),
                  logs and counts (usage_ledger.py)
      proxy.py    chooses a replica (replicas/balancer.py), sends, retries (replicas/lost_replicas.py)
        answer_stream.py  passes the answer on, byte for byte, reading usage from it (answer_usage.py)
    replicas/health.py  asks replicas how they are, for /health
    table.py      follows routes.json;  replicas/upstreams.py  keeps connections to replicas
    admin.py      /status, /usage and /metrics on the private socket run/gateway.sock
"""
