# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""DMTF's library `redfish` as a client of a fabric manager: sessions, changes with ETags, tasks, events.

Arguments: the manager's URL. The variables NAME and PASSWORD are an administrator's.
"""

import http.server
import json
import os
import queue
import sys
import threading
import time

import redfish

WAIT_MAX_S = 120
CHUNKS = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks"
SUBSCRIPTIONS = "/redfish/v1/EventService/Subscriptions"


def expect(answer, *statuses):
    assert answer.status in statuses, f"{answer.status} instead of {statuses}: {answer.text}"
    return answer


def connect(url, auth):
    client = redfish.redfish_client(url, os.environ["NAME"], os.environ["PASSWORD"], max_retry=3, timeout=WAIT_MAX_S)
    client.login(auth=auth)
    return client


def walk_services(client):
    root = client.root
    for name in ["SessionService", "AccountService", "Fabrics", "Chassis", "Tasks", "EventService", "Registries"]:
        expect(client.get(root[name]["@odata.id"]), 200)
    assert expect(client.head("/redfish/v1/Fabrics"), 200).text == ""


def change_with_etag(client, account):
    old = expect(client.get(account), 200)
    tag = {"If-Match": old.getheader("ETag")}
    expect(client.patch(account, body={"RoleId": "Operator"}, headers=tag), 200)
    refused = expect(client.patch(account, body={"RoleId": "ReadOnly"}, headers=tag), 412)
    info = refused.dict["error"]["@Message.ExtendedInfo"][0]
    assert info["MessageId"].endswith("PreconditionFailed") and info["Resolution"], info
    assert client.get(account).dict["RoleId"] == "Operator"


def make_and_delete_account(client):
    body = {"UserName": "judge", "Password": "a long password", "RoleId": "ReadOnly"}
    created = expect(client.post("/redfish/v1/AccountService/Accounts", body=body), 201)
    account = created.getheader("Location")
    change_with_etag(client, account)
    expect(client.delete(account), 200, 204)
    expect(client.get(account), 404)


def create_volume(client):
    body = {"Name": "judged", "MemoryChunkSizeMiB": 1024, "Oem": {"Aquifer": {"zone": "lab", "class": "tcp"}}}
    created = expect(client.post(CHUNKS, body=body), 201)
    task = expect(client.get(created.dict["Task"]), 200)
    deadline = time.monotonic() + WAIT_MAX_S
    while client.get(task.dict["TaskMonitor"]).status == 202:
        assert time.monotonic() < deadline, "the task does not end"
        time.sleep(0.1)
    assert client.get(created.dict["Task"]).dict["TaskState"] == "Completed"
    chunk = expect(client.get(created.getheader("Location")), 200)
    assert chunk.dict["MemoryChunkSizeMiB"] == 1024
    expect(client.patch(CHUNKS + "/judged", body={"MemoryChunkSizeMiB": 2048}, headers={"If-Match": '"stale"'}), 412)
    expect(client.delete(CHUNKS + "/judged"), 200)


class Listener(http.server.BaseHTTPRequestHandler):
    """Takes events after it has failed once, so that the manager has to try again."""

    events = queue.Queue()
    has_failed = False

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = 204 if Listener.has_failed else 503
        Listener.has_failed = True
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        if status == 204:
            Listener.events.put(json.loads(body))

    def log_message(self, *_):
        pass


def get_events(client):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    message = "AquiferFabric.1.0.TestEvent"
    body = {
        "Destination": f"http://127.0.0.1:{server.server_port}/events",
        "Protocol": "Redfish",
        "Context": "judge",
        "MessageIds": [message],
    }
    subscription = expect(client.post(SUBSCRIPTIONS, body=body), 201).getheader("Location")
    assert expect(client.get(subscription), 200).dict["Context"] == "judge"
    expect(client.post("/redfish/v1/EventService/Actions/EventService.SubmitTestEvent", body={}), 204)
    event = Listener.events.get(timeout=WAIT_MAX_S)
    assert event["Context"] == "judge" and event["Events"][0]["MessageId"] == message, event
    expect(client.delete(subscription), 204)
    expect(client.get(subscription), 404)
    server.shutdown()


def main():
    url = sys.argv[1]
    client = connect(url, "session")
    walk_services(client)
    make_and_delete_account(client)
    create_volume(client)
    get_events(client)
    client.logout()
    basic = connect(url, "basic")
    walk_services(basic)
    print("done")


main()
