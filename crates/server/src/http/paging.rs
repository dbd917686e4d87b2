//! Lists that come page by page: how many are on one, and where the next begins (`X-Next-Cursor`, missing on the last).

use axum::Json;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use cofer_model::Moment;
use serde::Serialize;
use uuid::Uuid;

use super::ApiError;

const NEXT_CURSOR: HeaderName = HeaderName::from_static("x-next-cursor");
const DEFAULT: u32 = 100;
const MAX: u32 = 1000;

/// How many are on a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit(u32);

impl Limit {
    pub(crate) fn of(asked: Option<u32>) -> Result<Self, ApiError> {
        let limit = asked.unwrap_or(DEFAULT);
        if !(1..=MAX).contains(&limit) {
            return Err(ApiError::invalid("limit", format!("a page has 1 to {MAX}")));
        }
        Ok(Self(limit))
    }

    /// What to look for: the one more tells that there is another page.
    pub(crate) fn and_one_more(self) -> u32 {
        self.0 + 1
    }

    /// The answer: of what was found as much as a page has room for, and the cursor `after` the last of it if there is more.
    pub(crate) fn page<Found, Shown: Serialize>(
        self,
        mut found: Vec<Found>,
        after: impl FnOnce(&Found) -> String,
        shown: impl FnMut(Found) -> Shown,
    ) -> Response {
        let has_more = found.len() > self.0 as usize;
        found.truncate(self.0 as usize);
        let next = found.last().filter(|_| has_more).map(after);
        let shown: Vec<_> = found.into_iter().map(shown).collect();
        let mut response = Json(shown).into_response();
        if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
            response.headers_mut().insert(NEXT_CURSOR, next);
        }
        response
    }
}

/// A place in a list that is ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) created_at: Moment,
    pub(crate) id: Uuid,
}

impl Cursor {
    pub(crate) fn write(self) -> String {
        format!("{}_{}", self.created_at.unix_ms(), self.id.simple())
    }

    pub(crate) fn read(text: &str) -> Result<Self, ApiError> {
        const LAST_MS: i64 = 253_402_300_799_000;
        let read = || {
            let (ms, id) = text.split_once('_').filter(|(_, id)| id.len() == 32)?;
            let ms = ms.parse().ok().filter(|ms| (0..=LAST_MS).contains(ms))?;
            Some(Self { created_at: Moment::from_unix_ms(ms), id: Uuid::try_parse(id).ok()? })
        };
        read().ok_or_else(not_a_cursor)
    }
}

pub(crate) fn not_a_cursor() -> ApiError {
    ApiError::invalid("cursor", "a cursor is the `X-Next-Cursor` of the page before")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_nothing_else_is_one() {
        let cursor = Cursor { created_at: Moment::now(), id: Uuid::now_v7() };
        assert_eq!(Cursor::read(&cursor.write()).unwrap(), cursor);
        for bad in [
            "",
            "x",
            "1_",
            "1_2",
            "-5_00000000000000000000000000000000",
            "9999999999999999_00000000000000000000000000000000",
        ] {
            assert!(Cursor::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_tells_where_the_next_begins_only_if_there_is_one() {
        let next = |found: Vec<u32>| {
            let page = Limit::of(Some(2)).unwrap().page(found, ToString::to_string, |number| number);
            page.headers().get(NEXT_CURSOR).map(|cursor| cursor.to_str().unwrap().to_owned())
        };
        assert_eq!((next(vec![1, 2, 3]).as_deref(), next(vec![1, 2]), next(vec![])), (Some("2"), None, None));
        assert!(Limit::of(Some(0)).is_err() && Limit::of(Some(MAX + 1)).is_err());
    }
}
