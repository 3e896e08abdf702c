// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Queries, and collections: `$filter`, `$skip`, `$top`, `$expand`, `only` and pages. `shape.rs` has what applies to
//! every resource.
//!
//! `$filter` is a bounded subset: up to [`TERMS_MAX`] terms `PATH OP VALUE` joined by `and`; `PATH` is a property or a
//! path of properties with `/`, `OP` is eq, ne, lt, le, gt or ge, and `VALUE` is a number, true, false or 'a text'.

use serde_json::{Value, json};

use super::answer::Problem;

/// Maximum number of members on one page.
pub(super) const PAGE_MAX: usize = 1000;
/// Maximum number of terms in a filter.
const TERMS_MAX: usize = 8;
/// Maximum number of properties that `$select` names.
const SELECTED_MAX: usize = 32;
/// Maximum length of a query.
pub(super) const QUERY_BYTES_MAX: usize = 2048;

/// The parameters of a query, decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Query {
    skip: usize,
    top: Option<usize>,
    /// The links that the answer replaces by their resources.
    pub(super) expand: Option<Expansion>,
    /// The properties that `$select` names, as paths.
    pub(super) select: Vec<Vec<String>>,
    /// Whether a collection with one member is answered with this member.
    pub(super) only: bool,
    filter: Vec<Term>,
    /// The parameters that the link to the next page repeats, as they were sent.
    kept: Vec<String>,
}

/// The links that `$expand` covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expansion {
    All,
    Links,
    NotLinks,
}

#[derive(Clone, Debug, PartialEq)]
struct Term {
    path: Vec<String>,
    operator: String,
    value: Value,
}

fn refuse<T>(what: impl Into<String>, remedy: &str) -> Result<T, Problem> {
    Err(Problem::new(400, "Base.1.18.QueryParameterValueError", what, remedy))
}

/// Decodes percent signs. Returns `None` if the result is not UTF-8.
pub(super) fn decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        match (byte, digits.filter(|digits| digits.bytes().all(|one| one.is_ascii_hexdigit()))) {
            (b'%', Some(digits)) => {
                out.push(u8::from_str_radix(digits, 16).ok()?);
                at += 2;
            }
            (b'%', None) => return None,
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(*byte),
        }
        at += 1;
    }
    String::from_utf8(out).ok()
}

impl Query {
    /// Parses the part of a URL after the question mark. Parameters without a dollar sign are ignored, as Redfish says.
    pub(super) fn parse(text: &str) -> Result<Query, Problem> {
        if text.len() > QUERY_BYTES_MAX {
            return refuse("the query is too long", "ask for less at a time");
        }
        let mut query = Query::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some((name, value)) = decoded(name).zip(decoded(value)) else {
                return refuse("the query is not UTF-8", "encode it with percent signs");
            };
            let number = || value.parse::<usize>().ok();
            match name.as_str() {
                "$skip" => match number() {
                    Some(skip) => query.skip = skip,
                    None => return refuse("$skip is not a number", "send a number"),
                },
                "$top" => match number() {
                    Some(top) => query.top = Some(top),
                    None => return refuse("$top is not a number", "send a number"),
                },
                "$expand" => {
                    query.expand = Some(expansion(&value)?);
                    query.kept.push(pair.to_owned());
                }
                "$filter" => {
                    query.filter = filter(&value)?;
                    query.kept.push(pair.to_owned());
                }
                "$select" => {
                    query.select = selection(&value)?;
                    query.kept.push(pair.to_owned());
                }
                "only" if value.is_empty() => query.only = true,
                "only" => return refuse("the parameter 'only' has a value", "send it without one"),
                name if name.starts_with('$') => {
                    let mut problem = Problem::new(
                        501,
                        "Base.1.18.QueryNotSupported",
                        "this parameter is not supported",
                        "leave it out",
                    );
                    problem.message = format!("query parameter {} is not supported", name.escape_default());
                    return Err(problem);
                }
                _ => {}
            }
        }
        if query.only && (query.expand.is_some() || !query.filter.is_empty()) {
            return refuse("the parameter 'only' is sent with $expand or $filter", "send one of them");
        }
        Ok(query)
    }

    /// Returns whether the query has a parameter that only collections support.
    pub(super) fn is_for_collections(&self) -> bool {
        self.only || !self.filter.is_empty()
    }
}

/// Parses which links to expand. Only one level is supported.
fn expansion(text: &str) -> Result<Expansion, Problem> {
    match text.strip_suffix("($levels=1)").unwrap_or(text) {
        "*" => Ok(Expansion::All),
        "~" => Ok(Expansion::Links),
        "." => Ok(Expansion::NotLinks),
        _ => refuse("this $expand is not supported", "send $expand=. or $expand=.($levels=1)"),
    }
}

/// Parses the paths of the properties that `$select` names.
fn selection(text: &str) -> Result<Vec<Vec<String>>, Problem> {
    let paths: Vec<Vec<String>> =
        text.split(',').map(|path| path.trim().split('/').map(str::to_owned).collect()).collect();
    if paths.iter().flatten().any(String::is_empty) {
        return refuse("$select cannot be parsed", "write the names of properties, separated by commas");
    }
    if paths.len() > SELECTED_MAX {
        return refuse(format!("$select names more than {SELECTED_MAX} properties"), "leave it out to get all");
    }
    Ok(paths)
}

impl Query {
    /// Returns how many members to skip, and the maximum number to return.
    pub(super) fn window(&self) -> (usize, usize) {
        (self.skip, self.top.unwrap_or(PAGE_MAX))
    }
}

/// Splits a filter into terms.
fn filter(text: &str) -> Result<Vec<Term>, Problem> {
    const REMEDY: &str = "write PATH eq|ne|lt|le|gt|ge VALUE, joined by `and`";
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for character in text.chars() {
        match character {
            '\'' => {
                is_quoted = !is_quoted;
                word.push(character);
            }
            ' ' if !is_quoted => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            _ => word.push(character),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    if is_quoted {
        return refuse("a quote of $filter does not end", REMEDY);
    }
    let mut terms = Vec::new();
    for (index, chunk) in words.chunks(4).enumerate() {
        let is_last = (index + 1) * 4 >= words.len();
        let [path, operator, value] = match chunk {
            [path, operator, value] if is_last => [path, operator, value],
            [path, operator, value, and] if and == "and" && !is_last => [path, operator, value],
            _ => return refuse("$filter cannot be parsed", REMEDY),
        };
        let is_known = ["eq", "ne", "lt", "le", "gt", "ge"].contains(&operator.as_str());
        let value = match value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
            // OData doubles a quote inside a text.
            Some(text) => Some(Value::from(text.replace("''", "'"))),
            None => serde_json::from_str::<Value>(value).ok().filter(|value| value.is_number() || value.is_boolean()),
        };
        let Some(value) = value.filter(|_| is_known) else { return refuse("$filter cannot be parsed", REMEDY) };
        if terms.len() == TERMS_MAX {
            return refuse(format!("$filter has more than {TERMS_MAX} terms"), "ask with fewer");
        }
        terms.push(Term { path: path.split('/').map(str::to_owned).collect(), operator: operator.clone(), value });
    }
    if terms.is_empty() { refuse("$filter is empty", REMEDY) } else { Ok(terms) }
}

impl Term {
    /// Returns whether the term can be decided by a member's `Id` alone, which is its name in the collection.
    fn is_of_id(&self) -> bool {
        self.path == ["Id"]
    }

    fn holds(&self, body: &Value) -> bool {
        let found = self.path.iter().try_fold(body, |value, name| value.get(name));
        let order = match (found, &self.value) {
            (Some(Value::Number(found)), Value::Number(value)) => found.as_f64().partial_cmp(&value.as_f64()),
            (Some(Value::String(found)), Value::String(value)) => Some(found.as_str().cmp(value.as_str())),
            (Some(Value::Bool(found)), Value::Bool(value)) => Some(found.cmp(value)),
            _ => None,
        };
        match (self.operator.as_str(), order) {
            ("ne", order) => order.is_none_or(std::cmp::Ordering::is_ne),
            (_, None) => false,
            ("eq", Some(order)) => order.is_eq(),
            ("lt", Some(order)) => order.is_lt(),
            ("le", Some(order)) => order.is_le(),
            ("gt", Some(order)) => order.is_gt(),
            (_, Some(order)) => order.is_ge(),
        }
    }
}

/// Returns the body of a collection.
pub(super) fn collection(
    path: &str,
    kind: &str,
    name: &str,
    query: &Query,
    ids: &[String],
    body: impl Fn(&str) -> Option<Value>,
) -> Value {
    // Terms on the id need no body: of ten thousand volumes, only those that a client asks for are written out.
    let (of_ids, of_bodies): (Vec<&Term>, Vec<&Term>) = query.filter.iter().partition(|term| term.is_of_id());
    let is_kept = |id: &&String| {
        let short = json!({ "Id": id });
        of_ids.iter().all(|term| term.holds(&short))
            && (of_bodies.is_empty() || body(id).is_some_and(|body| of_bodies.iter().all(|term| term.holds(&body))))
    };
    let kept: Vec<&String> = ids.iter().filter(is_kept).collect();
    let count = query.top.unwrap_or(PAGE_MAX).min(PAGE_MAX);
    let link = |id: &str| json!({ "@odata.id": format!("{path}/{id}") });
    // A collection contains only links to its members, so every form of `$expand` expands these.
    let member = |id: &&String| match query.expand.is_some() {
        true => body(id).unwrap_or_else(|| link(id)),
        false => link(id),
    };
    let members: Vec<Value> = kept.iter().copied().skip(query.skip).take(count).map(|id| member(&id)).collect();
    let next = query.skip.saturating_add(members.len());
    let mut value = json!({
        "@odata.id": path, "@odata.type": format!("#{kind}.{kind}"), "Name": name,
        "Members@odata.count": kept.len(), "Members": members,
    });
    if next < kept.len() && count == PAGE_MAX {
        let kept: String = query.kept.iter().map(|pair| format!("&{pair}")).collect();
        let link = format!("{path}?$skip={next}{kept}");
        value["Members@odata.nextLink"] = link.into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(query: &str) -> Value {
        let ids: Vec<String> = (0..2500).map(|number| format!("m{number}")).collect();
        let body = |id: &str| {
            Some(json!({ "Id": id, "Status": { "State": "Enabled" }, "Size": id[1..].parse::<u64>().ok()? }))
        };
        collection("/c", "ACollection", "All", &Query::parse(query).expect(query), &ids, body)
    }

    #[test]
    fn pages_follow_each_other() {
        let first = ask("");
        assert_eq!(first["Members"].as_array().map(Vec::len), Some(PAGE_MAX));
        assert_eq!(first["Members@odata.nextLink"], "/c?$skip=1000");
        let next = ask("$expand=.&$top=1000&$select=Id")["Members@odata.nextLink"].clone();
        assert_eq!(next, "/c?$skip=1000&$expand=.&$select=Id");
        let last = ask("$skip=2000");
        assert_eq!((last["Members"].as_array().map(Vec::len), last.get("Members@odata.nextLink")), (Some(500), None));
        assert_eq!(ask("$top=2&$skip=3")["Members"], json!([{ "@odata.id": "/c/m3" }, { "@odata.id": "/c/m4" }]));
    }

    #[test]
    fn a_filter_on_ids_writes_out_only_what_it_keeps() {
        let ids: Vec<String> = (0..10_000).map(|number| format!("m{number}")).collect();
        let written = std::cell::Cell::new(0);
        let body = |id: &str| {
            written.set(written.get() + 1);
            Some(json!({ "Id": id, "Size": 1 }))
        };
        let count = |query: &str| {
            written.set(0);
            let all = collection("/c", "ACollection", "All", &Query::parse(query).expect(query), &ids, body);
            (all["Members@odata.count"].as_u64(), written.get())
        };
        assert_eq!(count("$filter=Id%20ge%20'm999'"), (Some(11), 0));
        assert_eq!(count("$expand=.&$filter=Id%20eq%20'm7'%20and%20Size%20eq%201"), (Some(1), 2));
    }

    #[test]
    fn filters_compare_properties() {
        let count = |query: &str| ask(query)["Members@odata.count"].as_u64();
        assert_eq!(count("$filter=Size%20lt%2010%20and%20Status/State%20eq%20'Enabled'"), Some(10));
        assert_eq!(count("$filter=Id+eq+'m7'"), Some(1));
        assert_eq!(count("$filter=Nothing+eq+1"), Some(0));
        assert_eq!(Query::parse("$filter=Id+eq+'it''s'").expect("it can be").filter[0].value, "it's");
        assert_eq!(ask("$expand=.&$filter=Size+ge+2499")["Members"][0]["Id"], "m2499");
    }

    #[test]
    fn queries_that_cannot_be_answered_are_refused() {
        for query in [
            "$top=x",
            "$skip=-1",
            "$filter=",
            "$filter=a+eq",
            "$filter=a+eq+'b",
            "$filter=a+is+1",
            "$filter=a+eq+1+or+b+eq+1",
            "$filter=%ff+eq+1",
            "$filter=%zz",
            "$select=",
            "$select=a,,b",
            "$orderby=a",
            "only=1",
            "only&$expand=.",
            "$expand=Members",
            "$expand=.($levels=2)",
            "$top=99999999999999999999999",
            &format!("$filter={}", ["a+eq+1"; 9].join("+and+")),
            &"x".repeat(QUERY_BYTES_MAX + 1),
        ] {
            let problem = Query::parse(query).expect_err(query);
            assert!(problem.status == 400 || problem.status == 501, "{query}: {problem:?}");
        }
    }
}
