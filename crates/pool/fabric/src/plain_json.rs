// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! JSON whose objects have each name once. `serde_json::Value` keeps the last of several: a declaration that lists a
//! volume twice would silently lose the first, and what one program checks might not be what another one carries out.
//!
//! The number of values is limited: a text of 4 MiB can have 600,000 objects, which take a hundred times its size in
//! memory.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Maximum number of values in one text, objects and lists included. A declaration of 10,000 volumes has at most
/// 160,000: 16 for each volume with all its properties. An object takes up to 632 bytes, so that all values take less
/// than 170 MB.
pub const PLAIN_VALUES_MAX: usize = 1 << 18;

/// How much of a repeated name an error shows.
const NAME_SHOWN_MAX: usize = 80;

/// A value in which no object repeats a name.
#[derive(Debug, PartialEq)]
pub struct PlainJson(pub Value);

/// Reads one value, and what is in it.
#[derive(Clone, Copy)]
struct Reader<'a> {
    /// How many more values may come.
    left: &'a Cell<usize>,
}

impl<'de> Deserialize<'de> for PlainJson {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<PlainJson, D::Error> {
        let left = Cell::new(PLAIN_VALUES_MAX);
        Reader { left: &left }.deserialize(reader).map(PlainJson)
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        let too_many = || de::Error::custom(format!("it has more than {PLAIN_VALUES_MAX} values"));
        self.left.set(self.left.get().checked_sub(1).ok_or_else(too_many)?);
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(self)?;
            if map.contains_key(&name) {
                let shown: String = name.chars().take(NAME_SHOWN_MAX).collect();
                return Err(de::Error::custom(format!("{shown:?} is there twice")));
            }
            map.insert(name, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        serde_json::from_str::<PlainJson>(text).map(|plain| plain.0).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_those_of_serde_json() {
        for text in [
            r#"{"a": [1, -2, 3.5, true, null, "x\u00e9\n", {}, []], "b": {"a": {"a": 18446744073709551615}}}"#,
            "7",
            r#""""#,
            "1e308",
        ] {
            assert_eq!(read(text), Ok(serde_json::from_str(text).expect(text)), "{text}");
        }
    }

    #[test]
    fn a_name_is_there_once_in_each_object() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"b": [{"a": {"c": 1, "d": 2, "c": 3}}]}"#, r#"{"a": 1, "\u0061": 2}"#] {
            assert!(read(text).is_err_and(|line| line.contains("is there twice")), "{text}");
        }
        assert!(read(&"[".repeat(1000)).is_err(), "depth is limited");
        let long = format!("{{\"{0}\": 1, \"{0}\": 2}}", "x".repeat(10_000));
        assert!(read(&long).is_err_and(|line| line.len() < 200));
    }

    #[test]
    fn values_are_limited_wherever_they_are() {
        let list = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert!(read(&list(PLAIN_VALUES_MAX - 1)).is_ok(), "the list is a value, too");
        let objects = format!("[{}0]", r#"{"":0},"#.repeat(PLAIN_VALUES_MAX / 2));
        for text in [list(PLAIN_VALUES_MAX), objects] {
            assert!(read(&text).is_err_and(|line| line.contains("it has more than 262144 values")));
        }
    }
}
