// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! JSON whose objects have each name once. `serde_json::Value` keeps the last of several: a declaration that lists a
//! volume twice would silently lose the first, and what one program checks might not be what another one carries out.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// How much of a repeated name an error shows.
const NAME_SHOWN_MAX: usize = 80;

/// A value in which no object repeats a name.
#[derive(Debug, PartialEq)]
pub struct PlainJson(pub Value);

struct Reader;

impl<'de> Deserialize<'de> for PlainJson {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<PlainJson, D::Error> {
        reader.deserialize_any(Reader).map(PlainJson)
    }
}

impl<'de> Visitor<'de> for Reader {
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
        while let Some(PlainJson(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, PlainJson(value))) = entries.next_entry::<String, PlainJson>()? {
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
}
