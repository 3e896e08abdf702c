# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""sushy, OpenStack's client, on a fabric manager: it connects and reads what it has models of.

Arguments: the manager's URL. The variables NAME and PASSWORD are an administrator's.
"""

import os
import sys

import sushy
from sushy import auth


def main():
    name, password = os.environ["NAME"], os.environ["PASSWORD"]
    for kind in [auth.SessionAuth, auth.BasicAuth]:
        root = sushy.Sushy(sys.argv[1] + "/redfish/v1", auth=kind(name, password))
        fabrics = root.get_fabric_collection().get_members()
        assert [fabric.identity for fabric in fabrics] == ["Aquifer"], fabrics
        endpoints = fabrics[0].endpoints.get_members()
        assert {"Donor.d0000", "Host.h000"} <= {endpoint.identity for endpoint in endpoints}, endpoints
        chassis = {one.identity: one for one in root.get_chassis_collection().get_members()}
        assert "Pools" in chassis and chassis["Pools"].status.state is not None, chassis
        sessions = root.get_session_service()
        assert sessions.service_enabled and sessions.session_timeout > 0
        if kind is auth.SessionAuth:
            assert any(session.username == name for session in sessions.sessions.get_members())
        tasks = root.get_task_service().tasks.get_members()
        assert tasks and all(task.task_state is not None for task in tasks), tasks
        registries = root.lazy_registries
        assert "AquiferFabric.1.0" in registries, list(registries)
    print("done")


main()
