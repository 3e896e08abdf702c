// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The one table of commands: opcode, name, request and response.

use crate::codec::{Payload, Reader, Writer};
use crate::dialect::Dialect;
use crate::dynamic_capacity::*;
use crate::event::*;
use crate::failure::DecodeFailure;
use crate::generic::*;
use crate::ld::*;
use crate::log::*;
use crate::memory_device::*;
use crate::multi_head::*;
use crate::opcode::Opcode;
use crate::physical_switch::*;
use crate::qos::*;
use crate::tunnel::*;
use crate::virtual_switch::*;

/// A request, and what answers it.
pub trait Command: Payload {
    /// The number of the command.
    const OPCODE: Opcode;
    /// The payload of a response that says success.
    type Response: Payload;

    /// Reads the response. Overridden where its length follows from the request.
    fn read_response(&self, input: &mut Reader<'_>) -> Result<Self::Response, DecodeFailure> {
        input.read()
    }
}

macro_rules! commands {
    ($($number:literal $constant:ident $text:literal $request:ident => $response:ident $(, $read:ident)?;)*) => {
        impl Opcode {
            $(#[doc = concat!($text, ".")] pub const $constant: Self = Self($number);)*

            /// Every opcode that this crate knows, in order.
            pub const ALL: &'static [Self] = &[$(Self($number)),*];

            /// Returns the command's name in the specification; None for an opcode that is not in [`Opcode::ALL`].
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }

        $(impl Command for $request {
            const OPCODE: Opcode = Opcode($number);
            type Response = $response;

            $(fn read_response(&self, input: &mut Reader<'_>) -> Result<Self::Response, DecodeFailure> {
                self.$read(input)
            })?
        })*

        /// The payload of a request, by its command.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Request {
            $(#[doc = concat!($text, ".")] $request($request),)*
        }

        /// The payload of a response that says success, by its command.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Response {
            $(#[doc = concat!($text, ".")] $request($response),)*
        }

        impl Request {
            /// Returns the number of the command.
            pub fn opcode(&self) -> Opcode {
                match self {
                    $(Self::$request(_) => Opcode($number),)*
                }
            }

            /// Appends its bytes.
            pub fn write(&self, out: &mut Writer<'_>) {
                match self {
                    $(Self::$request(request) => request.write(out),)*
                }
            }

            /// Decodes a request, which must use up all of these bytes.
            pub fn decode(opcode: Opcode, bytes: &[u8], dialect: &Dialect) -> Result<Self, DecodeFailure> {
                let mut input = Reader::new(bytes, dialect);
                let request = match opcode.0 {
                    $($number => Self::$request(input.read()?),)*
                    _ => return Err(DecodeFailure::UnknownOpcode(opcode)),
                };
                input.finish()?;
                Ok(request)
            }
        }

        impl Response {
            /// Returns the opcode of the request that it answers.
            pub fn opcode(&self) -> Opcode {
                match self {
                    $(Self::$request(_) => Opcode($number),)*
                }
            }

            /// Appends its bytes.
            pub fn write(&self, out: &mut Writer<'_>) {
                match self {
                    $(Self::$request(response) => response.write(out),)*
                }
            }

            /// Decodes the response to a request. Bytes after the response are an error, except padding that the
            /// dialect allows.
            pub fn decode(to: &Request, bytes: &[u8], dialect: &Dialect) -> Result<Self, DecodeFailure> {
                let mut input = Reader::new(bytes, dialect);
                let response = match to {
                    $(Request::$request(request) => Self::$request(request.read_response(&mut input)?),)*
                };
                if !(dialect.switch_identity_is_padded && to.opcode() == Opcode::IDENTIFY_SWITCH_DEVICE) {
                    input.finish()?;
                }
                Ok(response)
            }
        }
    };
}

commands! {
    0x0001 IDENTIFY "Identify" Identify => Identity;
    0x0002 BACKGROUND_STATUS "Background Operation Status" GetBackgroundStatus => BackgroundStatus;
    0x0003 GET_MESSAGE_LIMIT "Get Response Message Limit" GetMessageLimit => MessageLimit;
    0x0004 SET_MESSAGE_LIMIT "Set Response Message Limit" SetMessageLimit => MessageLimit;
    0x0005 ABORT_BACKGROUND "Request Abort Background Operation" AbortBackground => Empty;
    0x0100 GET_EVENT_RECORDS "Get Event Records" GetEventRecords => EventRecords;
    0x0101 CLEAR_EVENT_RECORDS "Clear Event Records" ClearEventRecords => Empty;
    0x0102 GET_EVENT_INTERRUPT_POLICY "Get Event Interrupt Policy" GetEventInterruptPolicy => EventInterruptPolicy;
    0x0103 SET_EVENT_INTERRUPT_POLICY "Set Event Interrupt Policy" SetEventInterruptPolicy => Empty;
    0x0104 GET_MCTP_EVENT_POLICY "Get MCTP Event Interrupt Policy" GetMctpEventPolicy => MctpEventPolicy;
    0x0105 SET_MCTP_EVENT_POLICY "Set MCTP Event Interrupt Policy" SetMctpEventPolicy => NewMctpEventPolicy;
    0x0106 EVENT_NOTIFICATION "Event Notification" EventNotification => Empty;
    0x0300 GET_TIMESTAMP "Get Timestamp" GetTimestamp => Timestamp;
    0x0301 SET_TIMESTAMP "Set Timestamp" SetTimestamp => Empty;
    0x0400 GET_SUPPORTED_LOGS "Get Supported Logs" GetSupportedLogs => SupportedLogs;
    0x0401 GET_LOG "Get Log" GetLog => LogBytes, read_bytes;
    0x0402 GET_LOG_CAPABILITIES "Get Log Capabilities" GetLogCapabilities => LogCapabilities;
    0x4000 IDENTIFY_MEMORY_DEVICE "Identify Memory Device" IdentifyMemory => MemoryIdentity;
    0x4400 SANITIZE "Sanitize" Sanitize => Empty;
    0x5100 IDENTIFY_SWITCH_DEVICE "Identify Switch Device" IdentifySwitch => SwitchIdentity;
    0x5101 GET_PHYSICAL_PORT_STATE "Get Physical Port State" GetPortStates => PortStates;
    0x5102 PHYSICAL_PORT_CONTROL "Physical Port Control" PortControl => Empty;
    0x5103 SEND_PPB_CONFIGURATION_REQUEST "Send PPB CXL.io Configuration Request" PpbConfigurationRequest => ReturnData;
    0x5104 GET_DOMAIN_SV_STATE "Get Domain Validation SV State" GetDomainSvState => SvState;
    0x5105 SET_DOMAIN_SV "Set Domain Validation SV" SetDomainSv => Empty;
    0x5106 GET_VCS_DOMAIN_SV_STATE "Get VCS Domain Validation SV State" GetVcsDomainSvState => SvState;
    0x5107 GET_DOMAIN_SV "Get Domain Validation SV" GetDomainSv => DomainSv;
    0x5200 GET_VIRTUAL_SWITCH_INFO "Get Virtual CXL Switch Info" GetVirtualSwitches => VirtualSwitches, read_switches;
    0x5201 BIND_VPPB "Bind vPPB" BindVppb => Empty;
    0x5202 UNBIND_VPPB "Unbind vPPB" UnbindVppb => Empty;
    0x5203 GENERATE_AER_EVENT "Generate AER Event" GenerateAerEvent => Empty;
    0x5300 TUNNEL "Tunnel Management Command" Tunnel => Tunnelled;
    0x5301 SEND_LD_CONFIGURATION_REQUEST "Send LD CXL.io Configuration Request" LdConfigurationRequest => ReturnData;
    0x5302 SEND_LD_MEMORY_REQUEST "Send LD CXL.io Memory Request" LdMemoryRequest => LdMemoryData;
    0x5400 GET_LD_INFO "Get LD Info" GetLdCapabilities => LdCapabilities;
    0x5401 GET_LD_ALLOCATIONS "Get LD Allocations" GetLdAllocations => LdAllocations;
    0x5402 SET_LD_ALLOCATIONS "Set LD Allocations" SetLdAllocations => NewLdAllocations;
    0x5403 GET_QOS_CONTROL "Get QoS Control" GetQosControl => QosControl;
    0x5404 SET_QOS_CONTROL "Set QoS Control" SetQosControl => QosControl;
    0x5405 GET_QOS_STATUS "Get QoS Status" GetQosStatus => QosStatus;
    0x5406 GET_QOS_ALLOCATED_BW "Get QoS Allocated BW" GetQosAllocatedBw => QosFractions;
    0x5407 SET_QOS_ALLOCATED_BW "Set QoS Allocated BW" SetQosAllocatedBw => QosFractions;
    0x5408 GET_QOS_BW_LIMIT "Get QoS BW Limit" GetQosBwLimit => QosFractions;
    0x5409 SET_QOS_BW_LIMIT "Set QoS BW Limit" SetQosBwLimit => QosFractions;
    0x5500 GET_MULTI_HEADED_INFO "Get Multi-Headed Info" GetHeadMap => HeadMap;
    0x5501 GET_HEAD_INFO "Get Head Info" GetHeads => Heads;
    0x5600 GET_DCD_INFO "Get DCD Info" GetDcd => DcdCapabilities;
    0x5601 GET_HOST_DC_REGIONS "Get Host DC Region Configuration" GetHostDcRegions => HostDcRegions;
    0x5602 SET_DC_REGION "Set DC Region Configuration" SetDcRegion => Empty;
    0x5603 GET_DC_EXTENT_LISTS "Get DC Region Extent Lists" GetDcExtentLists => DcExtentLists;
    0x5604 INITIATE_DC_ADD "Initiate Dynamic Capacity Add" InitiateDcAdd => Empty;
    0x5605 INITIATE_DC_RELEASE "Initiate Dynamic Capacity Release" InitiateDcRelease => Empty;
    0x5606 DC_ADD_REFERENCE "Dynamic Capacity Add Reference" DcAddReference => Empty;
    0x5607 DC_REMOVE_REFERENCE "Dynamic Capacity Remove Reference" DcRemoveReference => Empty;
    0x5608 DC_LIST_TAGS "Dynamic Capacity List Tags" DcListTags => DcTags;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_has_each_opcode_once() {
        assert!(Opcode::ALL.is_sorted_by(|one, next| one < next));
        assert_eq!(Opcode::BIND_VPPB.to_string(), "Bind vPPB (5201h)");
        assert_eq!(Opcode(0xc003).to_string(), "c003h");
        assert!(Opcode::TUNNEL.is_fabric_manager() && !Opcode::IDENTIFY.is_fabric_manager());
    }

    #[test]
    fn an_unknown_opcode_is_refused() {
        let refused = Request::decode(Opcode(0x5700), &[], &Dialect::STANDARD);
        assert_eq!(refused, Err(DecodeFailure::UnknownOpcode(Opcode(0x5700))));
    }
}
