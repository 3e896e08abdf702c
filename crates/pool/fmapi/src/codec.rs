// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads and writes fields, little-endian, within bounds.
//!
//! The macro `payload!` defines a payload of fixed fields, and `field_enum!` a field whose values have names; payloads
//! with lists are written by hand.

use std::fmt::Debug;

use crate::dialect::Dialect;
use crate::failure::DecodeFailure;

/// Something that is written as bytes in a payload: a field, or a whole payload.
pub trait Payload: Clone + Debug + PartialEq + Sized {
    /// Appends its bytes. Reserved bytes are zeros.
    fn write(&self, out: &mut Writer<'_>);

    /// Reads its bytes. Reserved bytes may be anything.
    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure>;
}

/// Takes fields off the front of a payload.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The dialect of the sender.
    pub dialect: &'a Dialect,
}

impl<'a> Reader<'a> {
    /// Creates a reader at the first byte.
    pub fn new(bytes: &'a [u8], dialect: &'a Dialect) -> Self {
        Self { bytes, at: 0, dialect }
    }

    /// Takes the next bytes.
    pub fn take(&mut self, wanted: usize) -> Result<&'a [u8], DecodeFailure> {
        let left = &self.bytes[self.at..];
        let taken = left.get(..wanted).ok_or(DecodeFailure::Short { at: self.at, wanted, found: left.len() })?;
        self.at += wanted;
        Ok(taken)
    }

    /// Takes all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        let left = &self.bytes[self.at..];
        self.at = self.bytes.len();
        left
    }

    /// Returns how many bytes are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the offset of the next byte.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Reads a field or payload.
    pub fn read<P: Payload>(&mut self) -> Result<P, DecodeFailure> {
        P::read(self)
    }

    /// Reads a list of `count` fields or payloads. Allocates no more entries than bytes are left.
    pub fn list<P: Payload>(&mut self, count: usize) -> Result<Vec<P>, DecodeFailure> {
        let mut list = Vec::with_capacity(count.min(self.left()));
        for _ in 0..count {
            list.push(P::read(self)?);
        }
        Ok(list)
    }

    /// Fails because a field has a value that it cannot have.
    pub fn refuse<T>(&self, field: &'static str, value: u64) -> Result<T, DecodeFailure> {
        Err(DecodeFailure::Value { at: self.at, field, value })
    }

    /// Fails if bytes are left.
    pub fn finish(&self) -> Result<(), DecodeFailure> {
        match self.left() {
            0 => Ok(()),
            bytes => Err(DecodeFailure::Trailing { at: self.at, bytes }),
        }
    }
}

/// Appends fields to a payload.
#[derive(Debug)]
pub struct Writer<'a> {
    /// What has been written.
    pub bytes: Vec<u8>,
    /// The dialect of the receiver.
    pub dialect: &'a Dialect,
}

impl<'a> Writer<'a> {
    /// Creates a writer with nothing written.
    pub fn new(dialect: &'a Dialect) -> Self {
        Self { bytes: Vec::new(), dialect }
    }

    /// Writes a field or payload.
    pub fn put<P: Payload>(&mut self, field: &P) {
        field.write(self);
    }

    /// Writes bytes as they are.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes every entry of a list.
    pub fn put_list<P: Payload>(&mut self, list: &[P]) {
        list.iter().for_each(|one| one.write(self));
    }

    /// Writes zeros.
    pub fn reserved(&mut self, bytes: usize) {
        self.bytes.resize(self.bytes.len() + bytes, 0);
    }

    /// Writes the length of a list as a byte. A list of more than 255 entries is a bug of the caller.
    pub fn count_u8<T>(&mut self, list: &[T]) {
        self.put(&u8::try_from(list.len()).expect("no more entries than a byte counts"));
    }
}

macro_rules! number {
    ($($kind:ty),*) => {
        $(impl Payload for $kind {
            fn write(&self, out: &mut Writer<'_>) {
                out.put_bytes(&self.to_le_bytes());
            }

            fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
                let mut bytes = [0; size_of::<$kind>()];
                bytes.copy_from_slice(input.take(size_of::<$kind>())?);
                Ok(Self::from_le_bytes(bytes))
            }
        })*
    };
}

number!(u8, u16, u32, u64);

impl<P: Payload + Copy + Default, const N: usize> Payload for [P; N] {
    fn write(&self, out: &mut Writer<'_>) {
        out.put_list(self);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let mut list = [P::default(); N];
        for one in &mut list {
            *one = P::read(input)?;
        }
        Ok(list)
    }
}

/// Defines a payload of fixed fields, in their order, each with the reserved bytes that follow it.
macro_rules! payload {
    ($(#[$doc:meta])* pub struct $name:ident {
        $($(#[$field_doc:meta])* pub $field:ident: $kind:ty $(, reserved $reserved:literal)?;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }

        impl $crate::codec::Payload for $name {
            #[allow(unused_variables, reason = "a payload without fields")]
            fn write(&self, out: &mut $crate::codec::Writer<'_>) {
                $(
                    out.put(&self.$field);
                    $(out.reserved($reserved);)?
                )*
            }

            #[allow(unused_variables, reason = "a payload without fields")]
            fn read(input: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::failure::DecodeFailure> {
                $(
                    let $field = input.read()?;
                    $(input.take($reserved)?;)?
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}

/// Defines a field of one byte whose values have names. A value without a name is kept. `mask` says which bits of its
/// byte the field has; the others are reserved, and ignored.
macro_rules! field_enum {
    ($(#[$doc:meta])* pub enum $name:ident {
        $($(#[$value_doc:meta])* $value:ident = $number:literal,)*
    }) => {
        $crate::codec::field_enum! {
            $(#[$doc])* pub enum $name, mask 0xff {
                $($(#[$value_doc])* $value = $number,)*
            }
        }
    };
    ($(#[$doc:meta])* pub enum $name:ident, mask $mask:literal {
        $($(#[$value_doc:meta])* $value:ident = $number:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$value_doc])* $value,)*
            /// A value that the specification has not named.
            Reserved(u8),
        }

        impl $name {
            /// Returns the byte.
            pub fn bits(self) -> u8 {
                match self {
                    $(Self::$value => $number,)*
                    Self::Reserved(bits) => bits,
                }
            }

            /// Returns the value that a byte encodes.
            pub fn of_bits(bits: u8) -> Self {
                match bits {
                    $($number => Self::$value,)*
                    _ => Self::Reserved(bits),
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::of_bits(0)
            }
        }

        impl $crate::codec::Payload for $name {
            fn write(&self, out: &mut $crate::codec::Writer<'_>) {
                out.put(&self.bits());
            }

            fn read(input: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::failure::DecodeFailure> {
                let byte: u8 = input.read()?;
                Ok(Self::of_bits(byte & $mask))
            }
        }
    };
}

pub(crate) use {field_enum, payload};
