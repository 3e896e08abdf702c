# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors

"""DMTF's protocol validator, with the arguments of its command, without its search for services by multicast.

A test asks the service that it has started and sends nothing to a network.
"""

import sys

from redfish_protocol_validator import utils

utils.discover_ssdp = lambda *_, **__: {}

from redfish_protocol_validator.console_scripts import main  # noqa: E402

sys.exit(main())
