//! A point in time, in UTC, to the millisecond.
//!
//! It is always written in the same twenty-four characters (`2026-11-15T20:47:28.123Z`), so that text order is
//! time order: SQLite compares moments as text.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(OffsetDateTime);

impl Moment {
    /// The wall clock. Doors ask it once, and pass the result on.
    pub fn now() -> Self {
        OffsetDateTime::now_utc().into()
    }

    /// This moment and a while after it, or the end of time where that would be past it.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let wait = time::Duration::try_from(wait).unwrap_or(time::Duration::MAX);
        Self(self.0.checked_add(wait).unwrap_or(time::macros::datetime!(9999-12-31 23:59:59 UTC)))
    }

    pub fn unix_ms(self) -> i64 {
        self.0.unix_timestamp() * 1000 + i64::from(self.0.millisecond())
    }

    /// The moment so many milliseconds after 1970 began, or that beginning where there is none.
    pub fn from_unix_ms(ms: i64) -> Self {
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000);
        at.unwrap_or(OffsetDateTime::UNIX_EPOCH).into()
    }

    /// Whole seconds from `earlier` to this moment; 0 if it is not earlier.
    pub fn seconds_since(self, earlier: Self) -> u64 {
        u64::try_from((self.0 - earlier.0).whole_seconds()).unwrap_or(0)
    }

    pub fn parse(text: &str) -> Result<Self, time::error::Parse> {
        OffsetDateTime::parse(text, &Rfc3339).map(Self::from)
    }
}

impl From<OffsetDateTime> for Moment {
    fn from(at: OffsetDateTime) -> Self {
        let at = at.to_offset(time::UtcOffset::UTC);
        Self(at.replace_millisecond(at.millisecond()).unwrap_or(at))
    }
}

impl From<Moment> for OffsetDateTime {
    fn from(moment: Moment) -> Self {
        moment.0
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
        f.write_str(&self.0.format(form).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for Moment {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl utoipa::PartialSchema for Moment {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl utoipa::ToSchema for Moment {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_seconds_are_written_with_their_milliseconds() {
        assert_eq!(Moment::parse("2026-11-15T20:47:28Z").unwrap().to_string(), "2026-11-15T20:47:28.000Z");
        assert_eq!(
            Moment::parse("2026-11-15T22:47:28.5+02:00").unwrap().to_string(),
            "2026-11-15T20:47:28.500Z"
        );
    }

    #[test]
    fn adding_more_than_the_calendar_holds_stops_at_its_end() {
        assert_eq!(Moment::now().after(Duration::MAX).to_string(), "9999-12-31T23:59:59.000Z");
    }

    proptest! {
        #[test]
        fn text_order_is_time_order(a in 0_i64..4_000_000_000_000, b in 0_i64..4_000_000_000_000) {
            let moment = |ms: i64| Moment::from(OffsetDateTime::UNIX_EPOCH + time::Duration::milliseconds(ms));
            prop_assert_eq!(moment(a).cmp(&moment(b)), moment(a).to_string().cmp(&moment(b).to_string()));
            prop_assert_eq!(Moment::parse(&moment(a).to_string()).unwrap(), moment(a));
            prop_assert_eq!(Moment::from_unix_ms(moment(a).unix_ms()), moment(a));
        }
    }
}
