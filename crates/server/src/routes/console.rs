//! `/` and `/console/…`: the console, a page for people. Its files are part of this program (`assets/console`), open to everybody, and know
//! nothing: what they show, the page asks the API for, with the token that a person gave it.
//!
//! A browser is told to run nothing but these files, to ask nobody but this Cofer, and to look with each load whether
//! they are still the same, so that a newer Cofer is never shown by an older page.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cofer_model::Kind;
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::http::ApiError;
use crate::http::error::shown;
use crate::http::extract::Path;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const INDEX: &str = "index.html";
/// So many bytes of a digest tell two files apart.
const TAG_BYTES: usize = 16;

/// A file of the console: its name below `/console/`, its type, its text.
macro_rules! files {
    ($($name:literal $kind:ident),* $(,)?) => {
        [$(($name, $kind, include_str!(concat!("../../assets/console/", $name)))),*]
    };
}

static FILES: LazyLock<BTreeMap<&str, File>> = LazyLock::new(|| {
    let all = files![
        "index.html" HTML,
        "console.css" CSS,
        "icon.svg" SVG,
        "main.js" JS,
        "api.js" JS,
        "dom.js" JS,
        "parts.js" JS,
        "content.js" JS,
        "form.js" JS,
        "log.js" JS,
        "projects.js" JS,
        "servers.js" JS,
        "server.js" JS,
        "tools.js" JS,
        "calls.js" JS,
        "runs.js" JS,
        "chat.js" JS,
        "environments.js" JS,
        "secrets.js" JS,
        "tokens.js" JS,
    ];
    all.into_iter().map(|(name, kind, text)| (name, File::new(kind, text))).collect()
});

/// What every answer with a file says besides.
const ALWAYS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

#[derive(Debug)]
struct File {
    kind: &'static str,
    text: &'static str,
    /// Quoted, as it is sent.
    tag: String,
}

impl File {
    fn new(kind: &'static str, text: &'static str) -> Self {
        let digest = Sha256::digest(text);
        Self { kind, text, tag: format!("\"{}\"", HEXLOWER.encode(&digest[..TAG_BYTES])) }
    }

    /// The file, or that it is still the one that the browser has.
    fn answer(&self, asked: &HeaderMap) -> Response {
        let mut response = if names(asked, &self.tag) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            ([(header::CONTENT_TYPE, self.kind)], self.text).into_response()
        };
        let headers = response.headers_mut();
        for (name, value) in ALWAYS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.extend(HeaderValue::from_str(&self.tag).ok().map(|tag| (header::ETAG, tag)));
        response
    }
}

/// `GET /`: the page.
pub async fn page(headers: HeaderMap) -> Result<Response, ApiError> {
    find(INDEX, &headers)
}

/// `GET /console/…`: what the page consists of.
pub async fn file(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    find(&name, &headers)
}

fn find(name: &str, asked: &HeaderMap) -> Result<Response, ApiError> {
    let nothing = || {
        let message = format!("there is nothing at /console/{}; the console is at /", shown(name));
        ApiError::new(Kind::NotFound, message)
    };
    FILES.get(name).map(|file| file.answer(asked)).ok_or_else(nothing)
}

/// Whether the browser has a file with this tag. A proxy between may have made a tag weak; the bytes are the same.
fn names(asked: &HeaderMap, tag: &str) -> bool {
    asked
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough for a slow line, and for somebody who wants to read it all.
    const BYTES_MAX: usize = 96 << 10;
    const LINES_MAX: usize = 400;

    fn asked(if_none_match: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static(if_none_match))])
    }

    #[test]
    fn a_tag_is_found_in_a_list_and_however_weak() {
        assert!(names(&asked("\"a\""), "\"a\""));
        assert!(names(&asked("\"b\", W/\"a\""), "\"a\""));
        assert!(names(&asked("*"), "\"a\""));
        assert!(!names(&asked("\"b\""), "\"a\""));
        assert!(!names(&HeaderMap::new(), "\"a\""));
    }

    #[test]
    fn the_console_stays_small_and_each_file_opens_with_its_story() {
        assert!(FILES.values().map(|file| file.text.len()).sum::<usize>() <= BYTES_MAX);
        for (name, file) in FILES.iter() {
            assert!(file.text.lines().count() <= LINES_MAX, "{name} is too long");
            let text = file.text.trim_start_matches("<!doctype html>\n");
            assert!(["//", "/*", "<!--"].iter().any(|open| text.starts_with(open)), "{name} tells no story");
        }
    }

    /// What a server says is somebody else's word: it must never become markup or script.
    #[test]
    fn no_script_makes_markup_of_text() {
        for (name, file) in FILES.iter().filter(|(_, file)| file.kind == JS) {
            for door in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!file.text.contains(door), "{name} has {door}");
            }
        }
    }

    #[test]
    fn every_file_that_is_named_by_another_is_there() {
        for (name, file) in FILES.iter().filter(|(_, file)| file.kind == JS) {
            for import in file.text.split(" from './").skip(1).filter_map(|rest| rest.split('\'').next()) {
                assert!(FILES.contains_key(import), "{name} imports {import}");
            }
        }
        for named in FILES[INDEX].text.split("\"console/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(FILES.contains_key(named), "the page names {named}");
        }
    }
}
