"""A cluster that runs nothing: API server, its controllers, and nodes that KWOK plays.

No root, no containers, no network of its own, a few seconds to start: for benchmarks and tests of
what the control plane does with many nodes and pods. Everything listens on loopback, and all state is
in one directory. `cluster` has a real node besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.kubernetes import binaries, controllers
from scripts.kubernetes.api_server import ApiServer
from scripts.kubernetes.processes import Daemon

PROGRAMS = ("etcd", "kube-apiserver", *controllers.PROGRAMS)

_OPTIONS = {
    # Without more requests per second it would take ten minutes to make the pods of a thousand
    # Deployments; a cluster of this size is given more, too.
    "kube-controller-manager": ["--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400"],
    "kube-scheduler": ["--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400"],
    # Pods have addresses at which nobody answers, at once, and which are of no other machine.
    "kwok": ["--cidr=127.64.0.1/16"],
}


class SimulatedCluster:
    """API server, controllers and KWOK.

    Args:
        directory: for everything it keeps; its path must be short enough for a socket in it.
        stages: files that say more of how pods behave; KWOK prefers stages with a weight.
        options: further options of daemons, by their names; they win over what is set here.

    Raises:
        ProgramsMissing: names what is not on this machine.
    """

    def __init__(
        self,
        directory: Path,
        stages: Sequence[Path] = (),
        options: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        programs = binaries.require(PROGRAMS)
        self.server = ApiServer(directory, programs)
        self._programs = programs
        self._options = {
            **_OPTIONS,
            "kwok": [*_OPTIONS["kwok"], *(f"--config={s}" for s in stages)],
        }
        for name, words in (options or {}).items():
            self._options[name] = [*self._options[name], *words]
        self._controllers: list[Daemon] = []

    def __enter__(self) -> SimulatedCluster:
        try:
            self.server.start()
            self._controllers = controllers.controllers(
                self.server, self._programs, self.server.kubeconfig(), self._options
            )
            for daemon in self._controllers:
                daemon.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._controllers:
            daemon.kill()
        self.server.stop()

    def pids(self) -> dict[str, int]:
        """Return the process id of each daemon, by its name."""
        daemons = [self.server.etcd, self.server.api_server, *self._controllers]
        return {daemon.name: daemon.pid for daemon in daemons}
