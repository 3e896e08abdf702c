// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What Redfish requires of every request and answer, whatever the resource: the headers `OData-Version`, `Accept`,
//! `Allow` and `Link`, the address `Members` of a collection, and conditions on ETags.

use serde_json::Value;

use super::answer::{Answer, Problem};
use super::routes::{Method, Route};
use super::service::Request;
use crate::order::{etag_of, matches};

/// The only version of OData that Redfish uses.
const ODATA_VERSION: &str = "4.0";
/// The header that asks what a change would do.
const DRY_RUN: &str = "aquifer-dry-run";
/// The header that unbinds a volume which is released.
const UNBIND: &str = "aquifer-unbind";
/// Where DMTF publishes its schemas.
const SCHEMAS: &str = "http://redfish.dmtf.org/schemas/v1";

/// Returns the path without a final slash. A POST to `Members` of a collection is one to the collection.
pub(super) fn plain_path(request: &Request) -> &str {
    let path = request.path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(&request.path);
    let is_posted = request.method == Method::Post.name();
    path.strip_suffix("/Members").filter(|_| is_posted).unwrap_or(path)
}

/// Refuses a request for a version of OData or a media type that this server does not support.
pub(super) fn check_headers(request: &Request, route: &Route) -> Result<(), Problem> {
    if let Some(version) = request.header("odata-version")
        && version.trim() != ODATA_VERSION
    {
        let what = format!("OData-Version {} is not supported", version.escape_default());
        return Err(Problem::new(412, "Base.1.18.PreconditionFailed", what, "send 4.0, or leave the header out"));
    }
    let media = route.media();
    if request.header("accept").is_some_and(|accept| !accepts(accept, media)) {
        let what = format!("the answer would be {media}, which Accept excludes");
        return Err(Problem::new(406, "Base.1.18.HeaderInvalid", what, format!("send Accept: {media}")));
    }
    let encoding = request.header("content-encoding").map_or("identity", str::trim);
    if !encoding.eq_ignore_ascii_case("identity") {
        let what = format!("Content-Encoding {} is not supported", encoding.escape_default());
        return Err(Problem::new(415, "Base.1.18.HeaderInvalid", what, "send the body as it is"));
    }
    check_word(request, route, (DRY_RUN, "Aquifer-Dry-Run"), route.has_dry_run, "this request has no dry run")?;
    check_word(request, route, (UNBIND, "Aquifer-Unbind"), route.has_unbind, "this request unbinds nothing else")
}

/// Refuses a header that would not have its effect, on a change that does not support it or in a wrong word: a dry run
/// that would not be one.
fn check_word(
    request: &Request,
    route: &Route,
    (header, shown): (&str, &str),
    is_supported: bool,
    unsupported: &str,
) -> Result<(), Problem> {
    let Some(word) = request.header(header).filter(|_| route.method != Method::Get) else { return Ok(()) };
    let refuse = |what: String, remedy: String| Err(Problem::new(400, "Base.1.18.HeaderInvalid", what, remedy));
    match word {
        "true" if is_supported => Ok(()),
        "true" => refuse(unsupported.into(), format!("leave {shown} out")),
        "false" => Ok(()),
        word => refuse(format!("{shown} is {}", word.escape_default()), "send true or false".into()),
    }
}

/// Returns whether a request asks what would happen. [`check_headers`] has checked that its route can say so.
pub(super) fn is_dry_run(request: &Request) -> bool {
    request.header(DRY_RUN) == Some("true")
}

/// Returns whether a request to release a volume unbinds it first. [`check_headers`] has checked the word.
pub(super) fn unbinds(request: &Request) -> bool {
    request.header(UNBIND) == Some("true")
}

/// Returns whether an `Accept` header includes a media type (RFC 9110; preferences are ignored).
fn accepts(accept: &str, media: &str) -> bool {
    let kind = media.split('/').next().unwrap_or_default();
    let takes = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let is_excluded = |part: &str| part.strip_prefix("q=").is_some_and(|q| q.parse::<f32>() == Ok(0.0));
        let has_it = name == "*/*" || name == media || name.strip_suffix("/*") == Some(kind);
        has_it && !parts.any(is_excluded)
    };
    accept.trim().is_empty() || accept.split(',').any(takes)
}

/// Returns the methods of a path, for the header `Allow`.
pub(super) fn allowed<'a>(routes: impl Iterator<Item = &'a Route>) -> String {
    let names = routes.flat_map(|route| match route.method {
        Method::Get => vec!["GET", "HEAD"],
        method => vec![method.name()],
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the URL of a resource's schema, for the header `Link`.
fn described_by(kind: &str) -> String {
    let name = kind.trim_start_matches('#');
    let file = name.rsplit_once('.').map_or(name, |(file, _)| file);
    match name.starts_with("Aquifer") {
        true => format!("</redfish/v1/$metadata#{name}>; rel=describedby"),
        false => format!("<{SCHEMAS}/{file}.json>; rel=describedby"),
    }
}

/// Adds the headers that every answer to a read has.
pub(super) fn with_headers(request: &Request, answer: Answer, allow: String) -> Answer {
    let is_read = ["GET", "HEAD"].contains(&request.method.as_str()) && answer.status == 200;
    if !is_read {
        return answer;
    }
    let kind = answer.body.as_ref().and_then(|body| body.get("@odata.type")).and_then(Value::as_str);
    let link = kind.map(described_by);
    let answer = answer.with("allow", allow);
    link.into_iter().fold(answer, |answer, link| answer.with("link", link))
}

/// Returns the ETag of an answer to a read.
pub(super) fn etag_of_answer(answer: &Answer) -> Option<String> {
    let given = answer.headers.iter().find(|(name, _)| *name == "etag").map(|(_, tag)| tag.clone());
    given.or_else(|| answer.body.as_ref().map(|body| etag_of(body.to_string().as_bytes())))
}

/// Adds an ETag to an answer to a read, if it has none.
pub(super) fn tagged(request: &Request, answer: Answer) -> Answer {
    let is_tagged = answer.headers.iter().any(|(name, _)| *name == "etag");
    if answer.status != 200 || is_tagged || !["GET", "HEAD"].contains(&request.method.as_str()) {
        return answer;
    }
    let tag = etag_of_answer(&answer);
    tag.into_iter().fold(answer, |answer, tag| answer.with("etag", tag))
}

/// Answers 304 to a client that already has this answer.
pub(super) fn with_etag(request: &Request, answer: Answer) -> Answer {
    let answer = tagged(request, answer);
    let (Some(wanted), 200, "GET" | "HEAD") = (request.header("if-none-match"), answer.status, request.method.as_str())
    else {
        return answer;
    };
    match etag_of_answer(&answer).filter(|tag| matches(wanted, tag)) {
        Some(tag) => Answer { status: 304, ..Answer::default() }.with("etag", tag),
        None => answer,
    }
}

/// Refuses to change a resource that was changed since the client read it. For volumes and accounts, the writer
/// compares the ETag again with the state that it is about to change.
pub(super) fn check_if_match(request: &Request, read: &Answer) -> Result<(), Problem> {
    let (Some(wanted), Some(tag)) = (request.header("if-match"), etag_of_answer(read)) else { return Ok(()) };
    if matches(wanted, &tag) {
        return Ok(());
    }
    let what = "the resource was changed since its ETag was read";
    Err(Problem::new(412, "Base.1.18.PreconditionFailed", what, "read it again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_ranges_are_those_of_http() {
        for accept in
            ["*/*", "application/*", "text/html, application/json;q=0.5", "application/json; charset=utf-8", ""]
        {
            assert!(accepts(accept, "application/json"), "{accept}");
        }
        for accept in ["text/html", "application/json;q=0", "application/xml, text/*", "application", ","] {
            assert!(!accepts(accept, "application/json"), "{accept}");
        }
    }

    #[test]
    fn resources_are_described_by_their_schema() {
        let link = |kind: &str| described_by(kind).split('>').next().unwrap_or_default().to_owned();
        assert_eq!(link("#Chassis.v1_26_0.Chassis"), format!("<{SCHEMAS}/Chassis.v1_26_0.json"));
        assert_eq!(link("#ZoneCollection.ZoneCollection"), format!("<{SCHEMAS}/ZoneCollection.json"));
        assert!(link("#AquiferPlan.v1_0_0.AquiferPlan").starts_with("</redfish/v1/$metadata#"));
    }
}
