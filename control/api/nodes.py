"""``/v1/nodes``: what each node's agent last said."""

import logging
from collections import Counter

import falcon

from control.admission import Admission
from control.api import shapes, wire
from control.api.body import read_body
from control.api.problems import problem
from control.core.node import Node

log = logging.getLogger("weir.nodes")


class Nodes:
    """``/v1/nodes`` and ``/v1/nodes/{node}``"""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = wire.encode(shapes.Nodes(self._nodes()))

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, node: str) -> None:
        for known in self._nodes():
            if known.name == node:
                resp.data = wire.encode(known)
                return
        raise problem(falcon.HTTP_404, "node_not_found", f"no node {node[:64]!r} has been heard")

    def on_put_report(self, req: falcon.Request, resp: falcon.Response, node: str) -> None:
        """An agent's report; answered by the streams that run on its node."""
        try:
            report = wire.read_report(node, read_body(req))
        except wire.WireError as exc:
            raise problem(falcon.HTTP_400, "invalid_report", str(exc)) from exc
        streams = self._admission.report_node(node, report.memory_state, wire.plain(report))
        resp.data = wire.encode({"streams": streams})

    def _nodes(self) -> list[shapes.Node]:
        now = self._admission.clock()
        reported = {node.name: node for node in self._admission.nodes()}
        sessions: Counter[str] = Counter()
        streams: Counter[str] = Counter()
        agents = {_agent_session(node) for node in reported.values()}
        for session in self._admission.sessions():
            sessions[session.node] += session.id not in agents
            streams[session.node] += len(session.leases)
        return [
            _node(name, sessions[name], streams[name], reported.get(name), now)
            for name in sorted({*reported, *sessions})
        ]


def _agent_session(node: Node) -> str:
    """The session by which the node's agent tells of ends: it is no worker."""
    agent = wire.from_plain(node.report).agent
    return f"{node.name}/{agent.pid}/{round(agent.started * 1000)}"


def _node(name: str, sessions: int, streams: int, heard: Node | None, now: float) -> shapes.Node:
    if heard is None:
        return shapes.Node(name, sessions, streams, True, None, None, None, None)
    report = wire.from_plain(heard.report)
    silent_s = round(now - heard.last_seen, 3)
    told = (report.agent, report.tailer, report.memory)
    return shapes.Node(name, sessions, streams, heard.is_silent(now), silent_s, *told)
