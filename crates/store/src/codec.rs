//! How our words are written in each database: natively on PostgreSQL, as readable text on SQLite.
//!
//! | word     | PostgreSQL    | SQLite                          |
//! |----------|---------------|---------------------------------|
//! | id       | `uuid`        | text, hyphenated                |
//! | moment   | `timestamptz` | text of fixed width (sortable)  |
//!
//! Everything else (`TEXT`, `BIGINT`, bytes, JSON) sqlx writes alike on both.

use cofer_model::Moment;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::{Database, Decode, Encode, Postgres, Sqlite, Type};
use time::OffsetDateTime;
use uuid::Uuid;

/// A value in the form in which it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<T>(pub(crate) T);

impl<T> Stored<T> {
    /// For `Option` columns: `row.field.map(Stored::into_inner)`.
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

/// Writes `Stored<$ours>` as `$native` on PostgreSQL and as text on SQLite.
macro_rules! stored {
    ($ours:ty, $native:ty, $parse:expr) => {
        impl Type<Postgres> for Stored<$ours> {
            fn type_info() -> <Postgres as Database>::TypeInfo {
                <$native as Type<Postgres>>::type_info()
            }
        }

        impl Encode<'_, Postgres> for Stored<$ours> {
            fn encode_by_ref(
                &self,
                buffer: &mut <Postgres as Database>::ArgumentBuffer,
            ) -> Result<IsNull, BoxDynError> {
                <$native as Encode<'_, Postgres>>::encode_by_ref(&<$native>::from(self.0), buffer)
            }
        }

        impl<'r> Decode<'r, Postgres> for Stored<$ours> {
            fn decode(value: <Postgres as Database>::ValueRef<'r>) -> Result<Self, BoxDynError> {
                Ok(Self(<$native as Decode<'r, Postgres>>::decode(value)?.into()))
            }
        }

        impl Type<Sqlite> for Stored<$ours> {
            fn type_info() -> <Sqlite as Database>::TypeInfo {
                <String as Type<Sqlite>>::type_info()
            }
        }

        impl Encode<'_, Sqlite> for Stored<$ours> {
            fn encode_by_ref(
                &self,
                buffer: &mut <Sqlite as Database>::ArgumentBuffer,
            ) -> Result<IsNull, BoxDynError> {
                <String as Encode<'_, Sqlite>>::encode(self.0.to_string(), buffer)
            }
        }

        impl<'r> Decode<'r, Sqlite> for Stored<$ours> {
            fn decode(value: <Sqlite as Database>::ValueRef<'r>) -> Result<Self, BoxDynError> {
                let parse: fn(&str) -> Result<$ours, BoxDynError> = $parse;
                parse(<&str as Decode<'r, Sqlite>>::decode(value)?).map(Self)
            }
        }
    };
}

stored!(Uuid, Uuid, |text| Ok(Uuid::try_parse(text)?));
stored!(Moment, OffsetDateTime, |text| Ok(Moment::parse(text)?));
