//! Addresses and networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Function, Outcome, Overload, global, member};
use crate::selectors::eval::{Failure, Run};
use crate::selectors::value::{Network, Value, address_bits};

const IP: &str = "net.IP";
const CIDR: &str = "net.CIDR";

const OF_IP: &[Overload] = &[(&[IP], "bool")];
const OF_TEXT: &[Overload] = &[(&["string"], "bool")];

pub(super) const FUNCTIONS: &[Function] = &[
    global("ip", &[(&["string"], IP)], |arguments, run| {
        let text = text(&arguments[0], 1, run)?;
        parse_address(text).map(Value::Address).map_err(Failure::error)
    }),
    global("isIP", OF_TEXT, |arguments, run| {
        Ok(Value::Bool(parse_address(text(&arguments[0], 1, run)?).is_ok()))
    }),
    global("ip.isCanonical", OF_TEXT, |arguments, run| {
        let text = text(&arguments[0], 2, run)?;
        let address = parse_address(text).map_err(Failure::error)?;
        Ok(Value::Bool(address.to_string() == text))
    }),
    member("family", &[(&[IP], "int")], |arguments, run| {
        Ok(Value::Int(if address(&arguments[0], run)?.is_ipv4() { 4 } else { 6 }))
    }),
    member("isUnspecified", OF_IP, |arguments, run| Ok(address(&arguments[0], run)?.is_unspecified().into())),
    member("isLoopback", OF_IP, |arguments, run| Ok(address(&arguments[0], run)?.is_loopback().into())),
    member("isLinkLocalMulticast", OF_IP, |arguments, run| {
        Ok(Value::Bool(is_link_local_multicast(address(&arguments[0], run)?)))
    }),
    member("isLinkLocalUnicast", OF_IP, |arguments, run| {
        Ok(Value::Bool(is_link_local_unicast(address(&arguments[0], run)?)))
    }),
    member("isGlobalUnicast", OF_IP, |arguments, run| {
        let address = address(&arguments[0], run)?;
        let special = address.is_unspecified()
            || address.is_loopback()
            || address.is_multicast()
            || is_link_local_unicast(address)
            || address == IpAddr::V4(Ipv4Addr::BROADCAST);
        Ok(Value::Bool(!special))
    }),
    global("cidr", &[(&["string"], CIDR)], |arguments, run| {
        let text = text(&arguments[0], 1, run)?;
        parse_network(text).map(Value::Network).map_err(Failure::error)
    }),
    global("isCIDR", OF_TEXT, |arguments, run| {
        Ok(Value::Bool(parse_network(text(&arguments[0], 1, run)?).is_ok()))
    }),
    member("containsIP", &[(&[CIDR, IP], "bool"), (&[CIDR, "string"], "bool")], contains_address),
    member("containsCIDR", &[(&[CIDR, CIDR], "bool"), (&[CIDR, "string"], "bool")], contains_network),
    member("ip", &[(&[CIDR], IP)], |arguments, run| Ok(Value::Address(network(&arguments[0], run)?.address))),
    member("prefixLength", &[(&[CIDR], "int")], |arguments, run| {
        Ok(Value::Int(network(&arguments[0], run)?.prefix_bits.into()))
    }),
    member("masked", &[(&[CIDR], CIDR)], |arguments, run| {
        let network = network(&arguments[0], run)?;
        let address = masked(network.address, network.prefix_bits);
        Ok(Value::Network(Network { address, ..network }))
    }),
];

fn text<'a>(value: &'a Value, passes: u64, run: &mut Run) -> Result<&'a str, Failure> {
    let Value::Text(text) = value else {
        return Err(Failure::no_such_overload());
    };
    run.charge_pass(value.size() * passes)?;
    Ok(text)
}

fn address(value: &Value, run: &mut Run) -> Result<IpAddr, Failure> {
    run.charge(1)?;
    match value {
        Value::Address(address) => Ok(*address),
        _ => Err(Failure::no_such_overload()),
    }
}

fn network(value: &Value, run: &mut Run) -> Result<Network, Failure> {
    run.charge(1)?;
    match value {
        Value::Network(network) => Ok(*network),
        _ => Err(Failure::no_such_overload()),
    }
}

/// Truncates a text for a message.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text
        .parse()
        .map_err(|_| format!("IP Address {:?} parse error during conversion from string", shown(text)))?;
    match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {:?} is not allowed", shown(text)))
        }
        address => Ok(address),
    }
}

fn parse_network(text: &str) -> Result<Network, String> {
    let invalid = || format!("network address parse error during conversion from string: {:?}", shown(text));
    let (address, bits) = text.rsplit_once('/').ok_or_else(invalid)?;
    let address = parse_address(address).map_err(|_| invalid())?;
    let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || bits.len() > 1 && bits.starts_with('0') {
        return Err(invalid());
    }
    let prefix_bits: u8 = bits.parse().map_err(|_| invalid())?;
    if u64::from(prefix_bits) > address_bits(&address) {
        return Err(invalid());
    }
    Ok(Network { address, prefix_bits })
}

/// Clears the bits after the prefix.
fn masked(address: IpAddr, prefix_bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix_bits)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix_bits)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

fn contains(network: &Network, address: IpAddr) -> bool {
    network.address.is_ipv4() == address.is_ipv4()
        && masked(network.address, network.prefix_bits) == masked(address, network.prefix_bits)
}

/// Comparing costs a pass over the prefix of the network, twice; a text has to be parsed, too.
fn charge_comparison(arguments: &[Value], run: &mut Run) -> Result<(), Failure> {
    run.charge_pass(arguments[0].size() * 2)?;
    if let Value::Text(_) = arguments[1] { run.charge_pass(arguments[1].size()) } else { Ok(()) }
}

fn contains_address(arguments: &[Value], run: &mut Run) -> Outcome {
    charge_comparison(arguments, run)?;
    let address = match &arguments[1] {
        Value::Address(address) => *address,
        Value::Text(text) => parse_address(text).map_err(Failure::error)?,
        _ => return Err(Failure::no_such_overload()),
    };
    match &arguments[0] {
        Value::Network(network) => Ok(Value::Bool(contains(network, address))),
        _ => Err(Failure::no_such_overload()),
    }
}

fn contains_network(arguments: &[Value], run: &mut Run) -> Outcome {
    charge_comparison(arguments, run)?;
    run.charge(1 + arguments[0].size().div_ceil(10))?;
    let inner = match &arguments[1] {
        Value::Network(network) => *network,
        Value::Text(text) => parse_network(text).map_err(Failure::error)?,
        _ => return Err(Failure::no_such_overload()),
    };
    match &arguments[0] {
        Value::Network(outer) => {
            Ok(Value::Bool(outer.prefix_bits <= inner.prefix_bits && contains(outer, inner.address)))
        }
        _ => Err(Failure::no_such_overload()),
    }
}

fn is_link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }
}
