//! Finds the id of an answer that is too long to be kept, while it goes by.
//!
//! A line over the limit is not stored, but the call it answers must fail, and only that one. So its bytes are watched as
//! they pass: strings, depth, whether the top level's `"id"` is followed by a number, and whether there is a `"method"`,
//! which an answer does not have. A few bytes of state, whatever the length.

#[derive(Debug, Default)]
pub(crate) struct IdSpotter {
    depth: u32,
    string: Option<Text>,
    /// The text that ended last at the top level, while nothing but `:` and blanks came after it.
    key: Option<Text>,
    after_colon: bool,
    number: Option<u64>,
    found: Option<u64>,
    has_method: bool,
}

/// The digits of the largest id, which is more than `method` and `id` need.
const TEXT_BYTES: usize = 20;

/// As much of a string as is needed to know what it says, if it is one of these.
#[derive(Clone, Copy, Debug, Default)]
struct Text {
    bytes: [u8; TEXT_BYTES],
    length: usize,
    escaped: bool,
}

impl Text {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
        }
        self.length += 1;
    }

    /// What it says, if it is short.
    fn says(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl IdSpotter {
    pub(crate) fn watch(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.step(*byte);
        }
    }

    /// The id, once the line has ended.
    pub(crate) fn id(&self) -> Option<u64> {
        self.found.filter(|_| !self.has_method)
    }

    fn step(&mut self, byte: u8) {
        if let Some(mut text) = self.string.take() {
            return self.step_in_string(&mut text, byte);
        }
        if let Some(number) = self.number {
            if byte.is_ascii_digit() {
                self.number =
                    number.checked_mul(10).and_then(|number| number.checked_add(u64::from(byte - b'0')));
                return;
            }
            // The number has ended; what a fraction or exponent would make of it is no id of ours.
            self.found = matches!(byte, b',' | b'}' | b' ' | b'\t').then_some(number);
            self.number = None;
        }
        match byte {
            b'"' => self.string = Some(Text::default()),
            b'{' | b'[' => {
                self.depth += 1;
                self.expect_nothing();
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.expect_nothing();
            }
            b':' => self.after_colon = self.key.is_some(),
            b'0'..=b'9' if self.after_colon && self.key.is_some_and(|key| key.says() == b"id") => {
                self.number = Some(u64::from(byte - b'0'));
                self.expect_nothing();
            }
            b' ' | b'\t' | b'\r' => {}
            _ => self.expect_nothing(),
        }
    }

    fn step_in_string(&mut self, text: &mut Text, byte: u8) {
        match byte {
            _ if text.escaped => {
                text.escaped = false;
                text.push(byte);
            }
            b'\\' => {
                text.escaped = true;
                text.push(byte);
            }
            b'"' => {
                let (is_value, key) = (self.after_colon, self.key.take());
                self.expect_nothing();
                if self.depth != 1 {
                    return;
                }
                if !is_value {
                    self.has_method |= text.says() == b"method";
                    self.key = Some(*text);
                } else if key.is_some_and(|key| key.says() == b"id") {
                    // Some servers send numbers back as text.
                    self.found = std::str::from_utf8(text.says()).ok().and_then(|digits| digits.parse().ok());
                }
                return;
            }
            byte => text.push(byte),
        }
        self.string = Some(*text);
    }

    fn expect_nothing(&mut self) {
        self.key = None;
        self.after_colon = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spot(line: &str) -> Option<u64> {
        let mut spotter = IdSpotter::default();
        line.as_bytes().chunks(3).for_each(|part| spotter.watch(part));
        spotter.id()
    }

    #[test]
    fn the_id_of_the_top_level_is_found_wherever_it_stands() {
        for (line, expected) in [
            (r#"{"id":42,"result":{}}"#, Some(42)),
            (r#"{"result":{"id":1,"x":[{"id":2}]},"jsonrpc":"2.0","id" : 42 }"#, Some(42)),
            (r#"{"result":"\"id\":7,","id":42}"#, Some(42)),
            (r#"{"a":"id","b":7,"id":42}"#, Some(42)),
            (r#"{"result":{"id":1}}"#, None),
            (r#"{"id":"42"}"#, Some(42)),
            (r#"{"id":"forty-two"}"#, None),
            (r#"{"id":42,"method":"roots/list"}"#, None),
            (r#"{"method":"notifications/message","params":{"id":42}}"#, None),
            (r#"{"result":{"method":"x"},"id":42}"#, Some(42)),
            (r#"{"id":4.2}"#, None),
            (r#"{"id":99999999999999999999999}"#, None),
            ("not json at all", None),
        ] {
            assert_eq!(spot(line), expected, "{line}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_real_parser(id in any::<u64>(), text in ".{0,20}", key in "[a-z]{1,3}", nested in any::<u64>()) {
            prop_assume!(key != "id");
            let line = serde_json::json!({key: {"id": nested, "text": text}, "id": id, "z": text}).to_string();
            prop_assert_eq!(spot(&line), Some(id));
        }

        #[test]
        fn nothing_whatever_breaks_it(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            IdSpotter::default().watch(&bytes);
        }
    }
}
