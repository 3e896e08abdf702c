// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a frame, or what it asks for, is refused: a code on the wire, a counter at the donor, a word in messages.

use std::fmt;

macro_rules! refusals {
    ($($code:literal $name:ident $word:literal $meaning:literal,)+) => {
        /// Why a request or a frame was refused. The set may grow; an unknown code is a protocol error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum Refusal {
            $(#[doc = $meaning] $name = $code,)+
        }

        impl Refusal {
            /// Every refusal, in the order of its code, from 1 on.
            pub const ALL: &[Refusal] = &[$(Refusal::$name),+];

            /// The word for metrics and JSON.
            pub const fn word(self) -> &'static str {
                match self { $(Refusal::$name => $word,)+ }
            }

            /// The meaning, in half a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Refusal::$name => $meaning,)+ }
            }
        }
    };
}

refusals! {
    1 Foreign "foreign" "not a frame of this protocol",
    2 Version "version" "no version of the protocol that both sides speak",
    3 HeaderDamaged "header_damaged" "the header does not match its checksum",
    4 BodyDamaged "body_damaged" "the body does not match its checksum",
    5 UnknownKind "unknown_kind" "a kind of message that this side does not take",
    6 BadField "bad_field" "a field that does not fit its message",
    7 Oversized "oversized" "a body longer or shorter than its message allows",
    8 Truncated "truncated" "a connection that ended within a frame",
    9 Slow "slow" "a frame that took too long to arrive",
    10 Replayed "replayed" "a request number that is not the next one",
    11 NoHello "no_hello" "a request before the greeting",
    12 NotYours "not_yours" "a lease that another borrower has",
    13 StaleToken "stale_token" "a fencing token that is no longer the lease's",
    14 NoLease "no_lease" "a lease that does not exist, has expired or was revoked",
    15 OutsideLease "outside_lease" "bytes outside the lease",
    16 Quota "quota" "more than a borrower may have",
    17 Full "full" "more than the donor has left to lend",
    18 Busy "busy" "the slab is in use at this moment",
    19 TooManyConnections "too_many_connections" "more connections than the donor serves",
    20 Ending "ending" "the donor takes memory back and lends nothing new",
    21 PlainOnly "plain_only" "TLS at a donor that lends in plain text",
    22 TlsOnly "tls_only" "plain text at a donor that lends over TLS",
    23 Handshake "handshake" "a TLS handshake that was not completed",
    24 NoCertificate "no_certificate" "no certificate where one is asked for",
    25 CertificateExpired "certificate_expired" "a certificate that has expired or is not valid yet",
    26 CertificateUnknown "certificate_unknown" "a certificate of another authority",
    27 CertificateUnusable "certificate_unusable" "a certificate that cannot be used",
    28 Distrusted "distrusted" "a borrower that does not trust this donor's certificate",
    29 RecordDamaged "record_damaged" "a TLS record that cannot be opened",
    30 OtherUser "other_user" "a user that may not borrow here",
}

/// What a refusal means for the sender of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The same request would be refused again.
    Final,
    /// The reason is temporary, or concerns only one connection: the sender repeats the request until its time limit.
    MayPass,
}

impl Refusal {
    /// The number of the refusal on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The place of the refusal in [`Refusal::ALL`].
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// The refusal with this number.
    pub fn from_code(code: u64) -> Option<Refusal> {
        let index = usize::try_from(code.checked_sub(1)?).ok()?;
        Refusal::ALL.get(index).copied()
    }

    /// Whether the refusal is final or may be transient.
    pub const fn kind(self) -> RefusalKind {
        match self {
            Refusal::Busy
            | Refusal::TooManyConnections
            // These concern one connection: another connection works.
            | Refusal::HeaderDamaged
            | Refusal::BodyDamaged
            | Refusal::Truncated
            | Refusal::Slow
            | Refusal::Replayed
            | Refusal::Handshake
            | Refusal::RecordDamaged => RefusalKind::MayPass,
            _ => RefusalKind::Final,
        }
    }

    /// Whether the connection ends, because nothing that follows on it can be trusted.
    pub const fn ends_connection(self) -> bool {
        !matches!(
            self,
            Refusal::NotYours
                | Refusal::StaleToken
                | Refusal::NoLease
                | Refusal::OutsideLease
                | Refusal::Quota
                | Refusal::Full
                | Refusal::Busy
                | Refusal::Ending
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.meaning())
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that ended, or could not be established, says nothing about a lease.
    #[test]
    fn refusals_about_leases_and_quotas_are_final() {
        for refusal in [Refusal::NoLease, Refusal::NotYours, Refusal::Quota, Refusal::Full, Refusal::UnknownKind] {
            assert_eq!(refusal.kind(), RefusalKind::Final, "{refusal}");
        }
        for refusal in [Refusal::TooManyConnections, Refusal::Busy, Refusal::Slow] {
            assert_eq!(refusal.kind(), RefusalKind::MayPass, "{refusal}");
        }
    }

    #[test]
    fn codes_start_at_one_and_round_trip() {
        for (index, refusal) in Refusal::ALL.iter().enumerate() {
            assert_eq!((refusal.index(), usize::from(refusal.code())), (index, index + 1));
            assert_eq!(Refusal::from_code(u64::from(refusal.code())), Some(*refusal));
        }
        assert_eq!(Refusal::from_code(0), None);
        assert_eq!(Refusal::from_code(Refusal::ALL.len() as u64 + 1), None);
        assert_eq!(Refusal::from_code(u64::MAX), None);
    }
}
