//! How much: bytes as people write them (`512M`), and shares of a processor (`0.5`).
//!
//! Both are kept as whole numbers and written back in the shortest form that says the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const UNITS: [(&str, u64); 5] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];
const MILLIS: u64 = 1000;
const CPU_MILLIS_MAX: u64 = 1024 * MILLIS;

/// Why a quantity was not taken. The text says what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuantity {
    #[error("a size is a number of bytes with K, M, G or T after it, such as \"512M\"")]
    Size,
    #[error("a share of processors is a number such as \"0.5\", at least 0.01 and at most 1024")]
    Cpu,
}

/// A number of bytes. `1K` is 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Size {
    pub const fn bytes(self) -> u64 {
        self.0
    }

    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl FromStr for Size {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
        let unit = match unit.to_ascii_uppercase().as_str() {
            "" | "B" => 1,
            "K" | "KB" | "KI" | "KIB" => 1 << 10,
            "M" | "MB" | "MI" | "MIB" => 1 << 20,
            "G" | "GB" | "GI" | "GIB" => 1 << 30,
            "T" | "TB" | "TI" | "TIB" => 1 << 40,
            _ => return Err(BadQuantity::Size),
        };
        let thousandths = thousandths(number).ok_or(BadQuantity::Size)?;
        let bytes = u128::from(thousandths) * unit / u128::from(MILLIS);
        // Engines count in signed numbers.
        i64::try_from(bytes).map(|bytes| Self(bytes.unsigned_abs())).map_err(|_| BadQuantity::Size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, unit): &&(&str, u64)| self.0.is_multiple_of(*unit) && self.0 >= *unit;
        let (name, unit) = UNITS.iter().find(fits).copied().unwrap_or(("", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

/// A share of processors, in thousandths of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu(u64);

impl Cpu {
    pub const fn millis(self) -> u64 {
        self.0
    }

    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }
}

impl FromStr for Cpu {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let millis = thousandths(text).ok_or(BadQuantity::Cpu)?;
        if (10..=CPU_MILLIS_MAX).contains(&millis) { Ok(Self(millis)) } else { Err(BadQuantity::Cpu) }
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / MILLIS, self.0 % MILLIS);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{rest:03}").trim_end_matches('0'))
    }
}

/// `1.5` as 1500. At most three digits after the point count; signs, exponents and words are none.
fn thousandths(number: &str) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(MILLIS)?.checked_add(fraction)
}

/// As text in JSON and in the API's document; a plain number is taken as well.
macro_rules! as_text {
    ($name:ident, $example:literal, $expecting:literal) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;

                impl serde::de::Visitor<'_> for Text {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$name, E> {
                        self.visit_str(&number.to_string())
                    }

                    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<$name, E> {
                        self.visit_str(&number.to_string())
                    }
                }

                deserializer.deserialize_any(Text)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let text = utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::String);
                text.examples([$example]).into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

as_text!(Size, "512M", "a size such as \"512M\"");
as_text!(Cpu, "0.5", "a share of processors such as \"0.5\"");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes, again) in [
            ("512M", 512 << 20, "512M"),
            ("1G", 1 << 30, "1G"),
            ("1.5G", 3 << 29, "1536M"),
            ("1gib", 1 << 30, "1G"),
            ("1000", 1000, "1000"),
            ("64kb", 64 << 10, "64K"),
            ("0", 0, "0"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, again), "{text}");
        }
        for bad in
            ["", "M", "-1M", "1e9", "1..5G", "lots", "1 G", "5X", "99999999999999999999", "9000000T", "1.G"]
        {
            assert_eq!(bad.parse::<Size>(), Err(BadQuantity::Size), "{bad}");
        }
    }

    #[test]
    fn shares_of_processors_read_as_people_write_them() {
        for (text, millis, again) in [
            ("0.5", 500, "0.5"),
            ("1", 1000, "1"),
            ("1.25", 1250, "1.25"),
            ("0.01", 10, "0.01"),
            ("2.0", 2000, "2"),
        ] {
            let cpu: Cpu = text.parse().unwrap();
            assert_eq!((cpu.millis(), cpu.to_string().as_str()), (millis, again), "{text}");
        }
        for bad in ["", "0", "0.001", "-1", "half", "inf", "NaN", "2000", "500m"] {
            assert_eq!(bad.parse::<Cpu>(), Err(BadQuantity::Cpu), "{bad}");
        }
    }

    #[test]
    fn numbers_are_taken_in_json_too() {
        assert_eq!(serde_json::from_str::<Cpu>("0.5").unwrap().millis(), 500);
        assert_eq!(serde_json::from_str::<Size>("1024").unwrap().bytes(), 1024);
        assert!(serde_json::from_str::<Size>("true").is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(bytes in 0..i64::MAX.unsigned_abs() / 1000, millis in 10..CPU_MILLIS_MAX) {
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
            prop_assert_eq!(Cpu(millis).to_string().parse(), Ok(Cpu(millis)));
        }
    }
}
