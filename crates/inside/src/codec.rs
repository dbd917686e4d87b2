//! Frames, and the few shapes that their payloads are made of.

use std::fmt;

use crate::{FRAME_BYTES_MAX, HEADER_BYTES, REQUEST_BYTES_MAX};

/// More parts than any request has.
const PARTS_MAX: u32 = 100_000;

/// Whoever said this does not speak as agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbled;

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what was said cannot be understood")
    }
}

impl std::error::Error for Garbled {}

/// A frame, whole.
pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&header(kind, payload.len())[..], payload].concat()
}

/// The head of a frame. Longer ones than a request may be are cut by whoever makes the payload.
pub fn header(kind: u8, length: usize) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [kind, a, b, c, d]
}

/// Kind and length of a frame, when its head is there. `request` says whether one may come, which may be longer.
pub fn parse_header(bytes: &[u8], request: bool) -> Result<Option<(u8, usize)>, Garbled> {
    let Some((&[kind, a, b, c, d], _)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).map_err(|_| Garbled)?;
    let length_max = if request { REQUEST_BYTES_MAX } else { FRAME_BYTES_MAX };
    if length > length_max { Err(Garbled) } else { Ok(Some((kind, length))) }
}

/// Writes a payload.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    pub fn short(mut self, number: u16) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn number(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn bytes(self, bytes: &[u8]) -> Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut writer = self.number(length);
        writer.0.extend(bytes);
        writer
    }

    /// How many, and each.
    pub fn each<T>(self, parts: &[T], write: impl Fn(Self, &T) -> Self) -> Self {
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        parts.iter().fold(self.number(count), write)
    }

    pub fn perhaps<T>(self, part: Option<T>, write: impl FnOnce(Self, T) -> Self) -> Self {
        match part {
            Some(part) => write(self.byte(1), part),
            None => self.byte(0),
        }
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a payload, and believes nothing.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (chunk, rest) = self.0.split_first_chunk::<N>().ok_or(Garbled)?;
        self.0 = rest;
        Ok(*chunk)
    }

    pub fn byte(&mut self) -> Result<u8, Garbled> {
        self.chunk().map(|[byte]| byte)
    }

    pub fn flag(&mut self) -> Result<bool, Garbled> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbled),
        }
    }

    pub fn short(&mut self) -> Result<u16, Garbled> {
        self.chunk().map(u16::from_be_bytes)
    }

    pub fn number(&mut self) -> Result<u32, Garbled> {
        self.chunk().map(u32::from_be_bytes)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Garbled> {
        let length = usize::try_from(self.number()?).map_err(|_| Garbled)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Garbled)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn each<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, Garbled>) -> Result<Vec<T>, Garbled> {
        let count = self.number()?;
        if count > PARTS_MAX {
            return Err(Garbled);
        }
        (0..count).map(|_| read(self)).collect()
    }

    pub fn perhaps<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Garbled>,
    ) -> Result<Option<T>, Garbled> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Everything that is left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Nothing may be left.
    pub fn finish<T>(self, value: T) -> Result<T, Garbled> {
        if self.0.is_empty() { Ok(value) } else { Err(Garbled) }
    }
}
