// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses what follows `donor:`, one donor or several, into a checked description.
//!
//! Pure. One donor is a tier by itself (`borrower/src/donor.rs`), several are an array (`borrower/src/array.rs`).

use aquifer_borrower::{
    ArraySpec, DATA_SHARDS, DonorSecurity, DonorSpec, MEMBERS_MAX, MemberSpec, POSITIONS, RdmaSpec, Redundancy,
    WEIGHT_MAX,
};
use aquifer_core::units::ByteSize;
use aquifer_tls::{Borrower, BorrowerFiles, Files};

use super::TierSpec;
use super::grammar::{only_size, options, set_size, unknown};

/// The longest path of a socket: unix(7).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The options that may follow the addresses.
#[derive(Default)]
struct Said<'a> {
    size: Option<ByteSize>,
    is_plain: bool,
    cert: Option<&'a str>,
    key: Option<&'a str>,
    ca: Option<&'a str>,
    crl: Option<&'a str>,
    names: Option<&'a str>,
    mirror: Option<&'a str>,
    parity: Option<&'a str>,
    device: Option<&'a str>,
}

const OPTIONS: &str = "cert=FILE, key=FILE, ca=FILE, crl=FILE, name=SERVERNAME, security=plain, device=NAME, mirror=N, \
                       parity=K+M, encrypt=ephemeral or size=SIZE";

/// A donor, or several.
pub(super) fn parse(rest: &str) -> Result<TierSpec, String> {
    let (addresses, rest) = rest.split_once(',').unwrap_or((rest, ""));
    if addresses.split('+').any(|address| address.starts_with(DonorSpec::LOCAL)) {
        return local(addresses, rest).map(TierSpec::Donor);
    }
    let said = Said::read(rest)?;
    let mut members = Vec::new();
    for text in addresses.split('+') {
        members.push(member(text.strip_prefix(DonorSpec::RDMA).unwrap_or(text))?);
    }
    let by_rdma: Vec<bool> = addresses.split('+').map(|text| text.starts_with(DonorSpec::RDMA)).collect();
    if said.device.is_some() && !by_rdma.contains(&true) {
        return Err("device= is for RDMA; write donor:rdma:HOST:PORT, or leave it out".into());
    }
    let names = said.names(members.len())?;
    let specs = members.iter().enumerate().map(|(index, (address, weight))| {
        let name = names.as_ref().map(|names| names[if names.len() == 1 { 0 } else { index }]);
        let security = said.security(address, name, addresses)?;
        let rdma = by_rdma[index].then(|| RdmaSpec { device: said.device.map(str::to_owned) });
        let donor =
            DonorSpec { address: (*address).to_owned(), size: None, security, rdma, tree: None, reservation: 0 };
        Ok(MemberSpec { donor, weight: weight.unwrap_or(1) })
    });
    let mut specs = specs.collect::<Result<Vec<MemberSpec>, String>>()?;
    let redundancy = said.redundancy(specs.len())?;
    if let [(_, weight)] = members[..] {
        if weight.is_some() {
            return Err(
                "a weight is for one donor among several; leave *WEIGHT out, or name more donors after +".into()
            );
        }
        let donor = specs.pop().expect("there is one").donor;
        return Ok(TierSpec::Donor(DonorSpec { size: said.size, ..donor }));
    }
    if specs.len() > MEMBERS_MAX {
        return Err(format!("{} donors are too many; name {MEMBERS_MAX} at most", specs.len()));
    }
    for (index, (address, _)) in members.iter().enumerate() {
        if members[..index].iter().any(|(other, _)| other == address) {
            return Err(format!(
                "'{address}' is given twice; give each donor once, with a weight if it is to get more"
            ));
        }
    }
    Ok(TierSpec::Array(ArraySpec { members: specs, redundancy, size: said.size }))
}

/// `unix:PATH`: a donor on this machine, which must be the only one. The memory that it shares belongs to one run of
/// the donor, whereas a member of an array has to continue with the donor's next run.
fn local(address: &str, rest: &str) -> Result<DonorSpec, String> {
    let is_another = |part: &str| part.starts_with(DonorSpec::LOCAL) || member(part).is_ok();
    if !address.starts_with(DonorSpec::LOCAL) || address.split('+').skip(1).any(is_another) {
        return Err(format!(
            "'{address}' names several donors, and one that shares memory within this machine stands alone; write \
             donor:unix:PATH for it, or give all of them ports"
        ));
    }
    let path = &address[DonorSpec::LOCAL.len()..];
    if path.is_empty() || path.len() > SOCKET_PATH_BYTES_MAX {
        return Err(format!(
            "'{path}' is not a socket path; write donor:unix:PATH with a path of {SOCKET_PATH_BYTES_MAX} bytes at \
             most"
        ));
    }
    Ok(DonorSpec {
        address: address.into(),
        size: only_size(rest)?,
        security: DonorSecurity::Local,
        rdma: None,
        tree: None,
        reservation: 0,
    })
}

/// `HOST:PORT`, optionally followed by `*WEIGHT`.
fn member(text: &str) -> Result<(&str, Option<u32>), String> {
    let (address, weight) = match text.split_once('*') {
        Some((address, weight)) => (address, Some(weight)),
        None => (text, None),
    };
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(1..))) {
        return Err(format!(
            "'{address}' is not a donor's address; write donor:HOST:PORT, for example donor:10.0.0.2:7000, or \
             donor:HOST:PORT+HOST:PORT"
        ));
    }
    let weight = weight
        .map(|weight| match weight.parse() {
            Ok(weight @ 1..=WEIGHT_MAX) => Ok(weight),
            _ => Err(format!("'{weight}' is not a weight; write a number from 1 to {WEIGHT_MAX}")),
        })
        .transpose()?;
    Ok((address, weight))
}

impl<'a> Said<'a> {
    fn read(rest: &'a str) -> Result<Said<'a>, String> {
        let mut said = Said::default();
        for option in options(rest) {
            match option {
                ("size", Some(value)) => set_size(&mut said.size, value)?,
                ("security", Some("plain")) => said.is_plain = true,
                ("security", Some("tls")) => said.is_plain = false,
                ("security", Some(other)) => {
                    return Err(format!("'{other}' is not a kind of security; write security=tls or security=plain"));
                }
                ("cert", Some(file)) if !file.is_empty() => said.cert = Some(file),
                ("key", Some(file)) if !file.is_empty() => said.key = Some(file),
                ("ca", Some(file)) if !file.is_empty() => said.ca = Some(file),
                ("crl", Some(file)) if !file.is_empty() => said.crl = Some(file),
                ("name", Some(text)) => said.names = Some(text),
                ("device", Some(name)) if !name.is_empty() => said.device = Some(name),
                ("mirror", Some(number)) => said.mirror = Some(number),
                ("parity", Some(numbers)) => said.parity = Some(numbers),
                (word, _) => return Err(unknown(word, OPTIONS)),
            }
        }
        let certified = [said.cert, said.key, said.ca, said.crl, said.names];
        if said.is_plain && certified.iter().any(Option::is_some) {
            return Err(
                "security=plain uses no certificates; leave it out, or leave cert=, key=, ca=, crl= and name= out"
                    .into(),
            );
        }
        Ok(said)
    }

    /// The names for the donors' certificates, if they are given: one for all, or one for each.
    fn names(&self, donors: usize) -> Result<Option<Vec<&'a str>>, String> {
        let Some(text) = self.names else { return Ok(None) };
        let names: Vec<&str> = text.split('+').collect();
        if let Some(bad) = names.iter().find(|name| Borrower::name(name).is_none()) {
            return Err(format!("'{bad}' is not a server name; write a host's name or an address"));
        }
        if names.len() != 1 && names.len() != donors {
            return Err(format!(
                "name= gives {} names for {donors} donors; give one for all, or one for each with + between",
                names.len()
            ));
        }
        Ok(Some(names))
    }

    fn security(&self, address: &str, name: Option<&str>, addresses: &str) -> Result<DonorSecurity, String> {
        if self.is_plain {
            return Ok(DonorSecurity::Plain);
        }
        let (Some(cert), Some(key), Some(ca)) = (self.cert, self.key, self.ca) else {
            return Err(format!(
                "memory goes to a donor over TLS unless plain text is asked for, and that takes certificates; write \
                 donor:{addresses},cert=FILE,key=FILE,ca=FILE, or donor:{addresses},security=plain where nobody else \
                 is on the network"
            ));
        };
        let name = match name {
            Some(name) => name.to_owned(),
            None => {
                let (host, _) = address.rsplit_once(':').expect("it was checked");
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                if Borrower::name(&host).is_none() {
                    return Err(format!(
                        "'{host}' is not a name that a certificate can be for; give one with name=SERVERNAME"
                    ));
                }
                host
            }
        };
        let identity = Files { cert: cert.into(), key: key.into(), ca: ca.into() };
        Ok(DonorSecurity::Tls { files: BorrowerFiles { identity, crl: self.crl.map(Into::into), service: None }, name })
    }

    fn redundancy(&self, donors: usize) -> Result<Redundancy, String> {
        if let Some(numbers) = self.parity {
            return if self.mirror.is_none() { parity(numbers, donors) } else { Err(BOTH.into()) };
        }
        let Some(number) = self.mirror else { return Ok(Redundancy::Striped) };
        let max = donors.min(POSITIONS);
        match number.parse::<usize>() {
            Ok(copies) if copies >= 2 && copies <= max => Ok(Redundancy::Mirror { copies }),
            Ok(2..) if donors < 2 => {
                Err(format!("mirror={number} takes as many donors; name them as donor:HOST:PORT+HOST:PORT"))
            }
            Ok(2..) => Err(format!("mirror={number} is more than can be kept here; write mirror={max} at most")),
            _ => Err(format!("'{number}' is not a number of copies; write mirror=2, or leave it out for one copy")),
        }
    }
}

const BOTH: &str = "mirror= and parity= are two ways to keep what a donor loses; write one of them";

/// `K+M`: K shards of data, and M of parity.
fn parity(text: &str, donors: usize) -> Result<Redundancy, String> {
    let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
    let Some((data, parity)) = text.split_once('+').and_then(|(data, parity)| number(data).zip(number(parity))) else {
        return Err(format!(
            "'{text}' is not a number of data and parity shards; write parity=K+M, for example parity=4+1"
        ));
    };
    if !DATA_SHARDS.contains(&data) {
        return Err(format!(
            "parity={text} cuts a page into {data}, which leaves unequal parts; write 1, 2, 4 or 8 before the +"
        ));
    }
    let total = data.saturating_add(parity);
    if total > POSITIONS {
        return Err(format!("parity={text} is {total} shards; write {POSITIONS} at most, for example parity=8+2"));
    }
    if total > donors {
        return Err(format!(
            "parity={text} takes {total} donors, and there are {donors}; name more after +, or write smaller numbers"
        ));
    }
    // An array that is not cut into shards keeps copies.
    Ok(if data == 1 { Redundancy::Mirror { copies: total } } else { Redundancy::Parity { data, parity } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(text: &str) -> ArraySpec {
        match text.parse::<TierSpec>() {
            Ok(TierSpec::Array(spec)) => spec,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn several_donors_are_an_array() {
        let spec = array("donor:a:1+b:2*3+[::1]:7000,security=plain,size=1GiB");
        let members: Vec<(&str, u32)> = spec.members.iter().map(|it| (&*it.donor.address, it.weight)).collect();
        assert_eq!(members, [("a:1", 1), ("b:2", 3), ("[::1]:7000", 1)]);
        assert_eq!((spec.redundancy, spec.size), (Redundancy::Striped, Some(ByteSize(1 << 30))));
        let spec = array("donor:a:1+b:2+c:3,mirror=3,security=plain");
        assert_eq!(spec.redundancy, Redundancy::Mirror { copies: 3 });
        let spec = array("donor:a:1+b:2+c:3+d:4+e:5+f:6,parity=4+1,security=plain");
        assert_eq!(spec.redundancy, Redundancy::Parity { data: 4, parity: 1 });
        let spec = array("donor:a:1+b:2+c:3,parity=1+2,security=plain");
        assert_eq!(spec.redundancy, Redundancy::Mirror { copies: 3 });
    }

    #[test]
    fn each_donor_is_reached_by_tcp_or_by_rdma() {
        let TierSpec::Donor(one) = "donor:rdma:a:1,security=plain".parse().unwrap() else { panic!("not a donor") };
        assert_eq!((one.address.as_str(), one.rdma), ("a:1", Some(RdmaSpec::default())));
        let spec = array("donor:rdma:a:1*2+b:2,security=plain,device=mlx5_0");
        let device = Some("mlx5_0".to_owned());
        let members: Vec<_> = spec.members.into_iter().map(|it| (it.donor.address, it.donor.rdma, it.weight)).collect();
        assert_eq!(members, [("a:1".into(), Some(RdmaSpec { device }), 2), ("b:2".into(), None, 1)]);
    }

    #[test]
    fn each_donor_has_a_name_of_its_own_or_all_have_one() {
        let names = |text: &str| {
            let name = |member: MemberSpec| match member.donor.security {
                DonorSecurity::Tls { name, .. } => name,
                DonorSecurity::Local | DonorSecurity::Plain => String::new(),
            };
            array(text).members.into_iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names("donor:a:1+b:2,cert=c,key=k,ca=a"), ["a", "b"]);
        assert_eq!(names("donor:a:1+b:2,cert=c,key=k,ca=a,name=x"), ["x", "x"]);
        assert_eq!(names("donor:a:1+b:2,cert=c,key=k,ca=a,name=x+y"), ["x", "y"]);
    }

    #[test]
    fn every_bad_combination_gets_one_line_with_cause_and_remedy() {
        let many: Vec<String> = (1..=64).map(|port| format!("h:{port}")).collect();
        let many = format!("donor:{},security=plain", many.join("+"));
        for (text, cause, remedy) in [
            ("donor:a:1+,security=plain", "''", "donor:HOST:PORT+HOST:PORT"),
            ("donor:a:1+b,security=plain", "'b'", "donor:HOST:PORT+HOST:PORT"),
            ("donor:a:1+b:2*0,security=plain", "'0' is not a weight", "from 1 to 16"),
            ("donor:a:1+b:2*17,security=plain", "'17' is not a weight", "from 1 to 16"),
            ("donor:a:1+b:2*x,security=plain", "'x' is not a weight", "from 1 to 16"),
            ("donor:a:1*2,security=plain", "among several", "leave *WEIGHT out"),
            ("donor:a:1+b:2+a:1,security=plain", "'a:1' is given twice", "a weight"),
            ("donor:a:1,mirror=2,security=plain", "mirror=2", "donor:HOST:PORT+HOST:PORT"),
            ("donor:a:1+b:2,mirror=3,security=plain", "mirror=3", "mirror=2 at most"),
            ("donor:a:1+b:2,mirror=1,security=plain", "'1'", "mirror=2"),
            ("donor:a:1+b:2,mirror=0,security=plain", "'0'", "mirror=2"),
            ("donor:a:1+b:2,mirror=two,security=plain", "'two'", "mirror=2"),
            ("donor:a:1+b:2,mirror,security=plain", "'mirror'", "mirror=N"),
            ("donor:a:1+b:2,parity=4+1,security=plain", "takes 5 donors, and there are 2", "name more"),
            ("donor:a:1,parity=2+1,security=plain", "takes 3 donors, and there are 1", "name more"),
            ("donor:a:1+b:2+c:3+d:4,parity=3+1,security=plain", "unequal parts", "1, 2, 4 or 8"),
            ("donor:a:1+b:2,parity=8+3,security=plain", "11 shards", "parity=8+2"),
            ("donor:a:1+b:2,parity=4+0,security=plain", "'4+0'", "parity=4+1"),
            ("donor:a:1+b:2,parity=0+1,security=plain", "'0+1'", "parity=4+1"),
            ("donor:a:1+b:2,parity=4,security=plain", "'4'", "parity=K+M"),
            ("donor:a:1+b:2,parity,security=plain", "'parity'", "parity=K+M"),
            ("donor:a:1+b:2,parity=4+18446744073709551615,security=plain", "shards", "10 at most"),
            ("donor:a:1+b:2+c:3,parity=2+1,mirror=2,security=plain", "two ways", "one of them"),
            ("donor:rdma:a,security=plain", "'a'", "donor:HOST:PORT"),
            ("donor:rdma:a:1+a:1,security=plain", "'a:1' is given twice", "a weight"),
            ("donor:a:1,security=plain,device=rxe0", "for RDMA", "donor:rdma:HOST:PORT"),
            ("donor:rdma:a:1,security=plain,device=", "'device'", "device=NAME"),
            ("donor:a:1+b:2", "over TLS", "donor:a:1+b:2,security=plain"),
            ("donor:a:1+b:2,cert=c,key=k,ca=a,name=x+y+z", "3 names for 2 donors", "one for each"),
            ("donor:a:1+b:2,cert=c,key=k,ca=a,name=x+", "''", "a host's name"),
            (&many, "64 donors", "63 at most"),
            ("donor:unix:/a+unix:/b", "stands alone", "donor:unix:PATH"),
            ("donor:unix:/a+host:1,security=plain", "stands alone", "all of them ports"),
            ("donor:host:1+unix:/a,security=plain", "stands alone", "all of them ports"),
        ] {
            let message = text.parse::<TierSpec>().expect_err(text).to_string();
            assert!(message.contains(cause), "{text}: {message}");
            assert!(message.contains(remedy), "{text}: {message}");
            assert!(!message.contains('\n'), "{text}: {message}");
        }
    }
}
