// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The console: the files of a single page, which are read at the start and served to browsers.
//!
//! No request touches the file system: a path that is not among the files that were read does not exist. The page gets
//! its data from the REST interface, with the token of its session in a header; nothing here needs one.
//!
//! The content-security policy allows the page its own scripts, styles and requests, and nothing else: no inline
//! script, no eval, no other site, no frame. `make console` builds the files; docs/fabric.md says where they belong.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use hyper::body::Bytes;

use crate::order::etag_of;

/// Where the page is.
const PREFIX: &str = "/console/";
/// The file that is the page.
const INDEX: &str = "index.html";
/// Maximum number of files. The build makes fewer than ten.
const FILES_MAX: usize = 64;
/// Maximum size of all files together: they stay in memory.
const BYTES_MAX: u64 = 8 << 20;
/// The kinds of files that are served, by the ends of their names.
const KINDS: &[(&str, &str)] = &[
    ("css", "text/css; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("txt", "text/plain; charset=utf-8"),
];
/// What the page may load and do.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";
/// The text that says how to get a console.
const MISSING: &str = "The console is not installed. Build it with `make console`, then run `make install` again, or \
                       name the directory of its files by `console` in the configuration.\n";

/// Why a directory is not a console: one line with the remedy.
#[derive(Debug)]
pub(crate) struct NotAConsole(String);

impl fmt::Display for NotAConsole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Debug)]
struct File {
    bytes: Bytes,
    kind: &'static str,
    etag: String,
}

/// The files, by their paths below the directory; none if there is no console.
#[derive(Clone, Debug, Default)]
pub(crate) struct Console {
    files: BTreeMap<String, File>,
}

/// What a browser gets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) bytes: Bytes,
}

/// Returns where the files are if the configuration names no directory: for a built daemon, and for an installed one.
fn places(program: &Path) -> [PathBuf; 2] {
    let directory = program.parent().unwrap_or(program);
    [directory.join("../console"), directory.join("../../share/aquifer/console")]
}

impl Console {
    /// Reads the files of the configured directory, or of the first usual one that exists. Without one there is no
    /// console.
    pub(crate) fn find(named: Option<&Path>) -> Result<Console, NotAConsole> {
        if let Some(directory) = named {
            return Console::read(directory);
        }
        let program = std::env::current_exe().unwrap_or_default();
        let found = places(&program).into_iter().find(|directory| directory.join(INDEX).is_file());
        found.map_or_else(|| Ok(Console::default()), |directory| Console::read(&directory))
    }

    fn read(directory: &Path) -> Result<Console, NotAConsole> {
        let refused = |path: &Path, why: &dyn fmt::Display| {
            NotAConsole(format!("console: {}: {why}; name the directory that `make console` has built", path.display()))
        };
        let mut console = Console::default();
        let mut left = BYTES_MAX;
        let mut directories = vec![(directory.to_owned(), String::new())];
        while let Some((directory, prefix)) = directories.pop() {
            for entry in fs::read_dir(&directory).map_err(|error| refused(&directory, &error))? {
                let path = entry.map_err(|error| refused(&directory, &error))?.path();
                let name = path.file_name().and_then(|name| name.to_str());
                let name = name.ok_or_else(|| refused(&path, &"its name is not UTF-8"))?;
                if path.is_dir() && prefix.is_empty() {
                    directories.push((path.clone(), format!("{name}/")));
                    continue;
                }
                let ending = name.rsplit('.').next().unwrap_or_default();
                let kind = KINDS.iter().find(|(known, _)| *known == ending).map(|(_, kind)| *kind);
                let kind = kind.ok_or_else(|| refused(&path, &"no page has files of this kind"))?;
                let size = fs::metadata(&path).map_err(|error| refused(&path, &error))?.len();
                left = left.checked_sub(size).ok_or_else(|| refused(&path, &"the files are too large"))?;
                if console.files.len() == FILES_MAX {
                    return Err(refused(&path, &"there are too many files"));
                }
                let bytes = fs::read(&path).map_err(|error| refused(&path, &error))?;
                let etag = etag_of(&bytes);
                console.files.insert(format!("{prefix}{name}"), File { bytes: bytes.into(), kind, etag });
            }
        }
        match console.files.contains_key(INDEX) {
            true => Ok(console),
            false => Err(refused(directory, &format_args!("there is no {INDEX}"))),
        }
    }

    /// Returns the answer to a request, if its path is the console's: a file, a redirect to the page, or how to install
    /// it.
    pub(crate) fn page(&self, method: &str, path: &str, if_none_match: Option<&str>) -> Option<Page> {
        let is_entrance = path == "/" || path == PREFIX.trim_end_matches('/');
        if !is_entrance && !path.starts_with(PREFIX) {
            return None;
        }
        if method != "GET" && method != "HEAD" {
            return Some(text(405, "The console is only read; use GET.\n").with("allow", "GET, HEAD"));
        }
        if is_entrance {
            return Some(text(302, "").with("location", PREFIX));
        }
        if self.files.is_empty() {
            return Some(text(404, MISSING));
        }
        let name = match path.strip_prefix(PREFIX).unwrap_or_default() {
            "" => INDEX,
            name => name,
        };
        let Some(file) = self.files.get(name) else {
            return Some(text(404, "The console has no such file; open /console/.\n"));
        };
        // A file whose name has its hash never changes; the page itself is revalidated each time.
        let keep = if name.contains('/') { "public, max-age=31536000, immutable" } else { "no-cache" };
        let is_known = if_none_match.is_some_and(|wanted| wanted == file.etag);
        let (status, bytes) = if is_known { (304, Bytes::new()) } else { (200, file.bytes.clone()) };
        let page = Page { status, headers: guards(), bytes };
        Some(page.with("content-type", file.kind).with("etag", &file.etag).with("cache-control", keep))
    }
}

impl Page {
    #[must_use]
    fn with(mut self, name: &'static str, value: &str) -> Page {
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// Returns the headers of every answer that restrict the browser.
fn guards() -> Vec<(&'static str, String)> {
    [
        ("content-security-policy", POLICY),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .to_vec()
}

fn text(status: u16, what: &str) -> Page {
    let page = Page { status, headers: guards(), bytes: Bytes::copy_from_slice(what.as_bytes()) };
    page.with("content-type", "text/plain; charset=utf-8").with("cache-control", "no-store")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str, files: &[(&str, &[u8])]) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("aquifer-console-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("assets")).expect("a directory");
        for (name, bytes) in files {
            fs::write(directory.join(name), bytes).expect("written");
        }
        directory
    }

    fn refusal(name: &str, files: &[(&str, &[u8])]) -> String {
        let directory = directory(name, files);
        let line = Console::read(&directory).expect_err(name).to_string();
        fs::remove_dir_all(directory).expect("removed");
        line
    }

    #[test]
    fn only_files_that_were_read_at_the_start_are_served() {
        let directory = directory("serves", &[("index.html", b"<p>page</p>"), ("assets/index-a1.js", b"run()")]);
        fs::write(directory.with_extension("secret"), "secret").expect("written");
        let console = Console::read(&directory).expect("a console");
        let get = |path: &str| console.page("GET", path, None);
        let header = |page: &Page, name: &str| {
            page.headers.iter().find(|(found, _)| *found == name).map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let index = get("/console/").expect("the page");
        assert_eq!((index.status, &index.bytes[..]), (200, &b"<p>page</p>"[..]));
        assert!(header(&index, "content-security-policy").contains("script-src 'self'; "), "{index:?}");
        assert!(!header(&index, "content-security-policy").contains("unsafe"), "{index:?}");
        let script = get("/console/assets/index-a1.js").expect("the script");
        assert_eq!(header(&script, "content-type"), "text/javascript; charset=utf-8");
        assert!(
            header(&script, "cache-control").contains("immutable") && header(&index, "cache-control") == "no-cache"
        );
        let again = console.page("GET", "/console/", Some(&header(&index, "etag"))).expect("an answer");
        assert_eq!((again.status, again.bytes.len()), (304, 0));
        for path in ["/", "/console"] {
            let page = get(path).expect("the way to the page");
            assert_eq!((page.status, header(&page, "location")), (302, "/console/".to_owned()));
        }
        let secret = format!("/console/../{}", directory.with_extension("secret").file_name().unwrap().display());
        for path in [&secret, "/console/assets", "/console//index.html", "/console/%2e%2e/index.html", "/console/x"] {
            assert_eq!(get(path).expect("an answer").status, 404, "{path}");
        }
        assert_eq!(console.page("POST", "/console/", None).expect("an answer").status, 405);
        assert_eq!(get("/redfish/v1"), None);
        assert_eq!(get("/consoles"), None);
        fs::remove_file(directory.with_extension("secret")).expect("removed");
        fs::remove_dir_all(directory).expect("removed");
    }

    #[test]
    fn without_files_the_answer_says_how_to_get_them() {
        let page = Console::default().page("GET", "/console/", None).expect("an answer");
        assert_eq!(page.status, 404);
        assert!(String::from_utf8_lossy(&page.bytes).contains("make console"), "{page:?}");
    }

    #[test]
    fn a_directory_that_is_no_console_is_refused_with_the_remedy() {
        assert!(refusal("empty", &[]).contains("there is no index.html; name the directory that `make console`"));
        let foreign = refusal("foreign", &[("index.html", b""), ("key.pem", b"")]);
        assert!(foreign.contains("key.pem: no page has files of this kind"), "{foreign}");
        let large = vec![b' '; usize::try_from(BYTES_MAX).expect("small") + 1];
        assert!(refusal("large", &[("index.html", &large)]).contains("the files are too large"));
        let names: Vec<String> = (0..FILES_MAX).map(|number| format!("{number}.js")).collect();
        let mut many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
        many.push(("index.html", b""));
        assert!(refusal("many", &many).contains("there are too many files"));
        let missing = Console::read(Path::new("/nowhere/console")).expect_err("nothing is there").to_string();
        assert!(missing.contains("No such file") && !missing.contains('\n'), "{missing}");
    }
}
