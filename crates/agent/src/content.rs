//! What a tool answered, as the model's API takes it: texts within a budget, images as images, the rest in words.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::rest::Rest;

/// The API's own limit for one image, in base64.
const IMAGE_BYTES_MAX: usize = 5 << 20;
/// Of all images of a result.
const IMAGES_BYTES_MAX: usize = 10 << 20;
const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

/// A result of `tools/call`.
#[derive(Deserialize)]
struct McpResult {
    #[serde(default)]
    content: Vec<Value>,
    #[serde(default, rename = "structuredContent")]
    structured: Option<Value>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Block {
    Text { text: String },
    Image { source: Source },
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Source {
    Base64 { media_type: String, data: String },
}

/// The blocks of a tool's result.
pub(crate) fn blocks(result: &RawValue, rest: &Rest) -> Vec<Block> {
    let mut budget = rest.budget();
    let Ok(result) = serde_json::from_str::<McpResult>(result.get()) else {
        return vec![Block::Text { text: rest.shown(result.get().to_owned(), &mut budget) }];
    };
    let mut images_left = IMAGES_BYTES_MAX;
    let (mut blocks, mut beyond) = (Vec::new(), Vec::new());
    for part in result.content {
        if let Some(image) = image(&part, images_left) {
            images_left -= part["data"].as_str().map_or(0, str::len);
            blocks.push(image);
            continue;
        }
        let words = in_words(part);
        // The API refuses texts without a character.
        match budget {
            _ if words.is_empty() => {}
            0 => beyond.push(words),
            _ => blocks.push(Block::Text { text: rest.shown(words, &mut budget) }),
        }
    }
    if !beyond.is_empty() {
        blocks.push(Block::Text { text: rest.shown(beyond.join("\n"), &mut budget) });
    }
    if blocks.is_empty()
        && let Some(structured) = result.structured
    {
        blocks.push(Block::Text { text: rest.shown(structured.to_string(), &mut budget) });
    }
    blocks
}

pub(crate) fn text(text: impl Into<String>) -> Vec<Block> {
    vec![Block::Text { text: text.into() }]
}

/// An image that the API takes, if there is room for it.
fn image(part: &Value, bytes_left: usize) -> Option<Block> {
    let field = |name: &str| part.get(name).and_then(Value::as_str);
    let (media_type, data) = (field("mimeType")?, field("data")?);
    let fits = field("type")? == "image"
        && IMAGE_TYPES.contains(&media_type)
        && data.len() <= bytes_left.min(IMAGE_BYTES_MAX);
    fits.then(|| Block::Image {
        source: Source::Base64 { media_type: media_type.to_owned(), data: data.to_owned() },
    })
}

fn in_words(mut part: Value) -> String {
    if let ("text", Some(Value::String(text))) = (kind(&part).as_str(), part.get_mut("text")) {
        return std::mem::take(text);
    }
    let bytes = |value: &Value| value.as_str().map_or(0, str::len);
    match kind(&part).as_str() {
        what @ ("image" | "audio") => {
            format!("[{what} {}, {} bytes in base64, not shown]", part["mimeType"], bytes(&part["data"]))
        }
        "resource" => {
            let uri = part["resource"]["uri"].as_str().unwrap_or_default().to_owned();
            match part["resource"]["text"].as_str() {
                Some(text) => format!("[resource {uri}]\n{text}"),
                None => format!(
                    "[resource {uri}, {} bytes in base64, not shown]",
                    bytes(&part["resource"]["blob"])
                ),
            }
        }
        _ => part.to_string(),
    }
}

fn kind(part: &Value) -> String {
    part.get("type").and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(result: &Value) -> Value {
        shown_within(1000, result)
    }

    fn shown_within(bytes_max: usize, result: &Value) -> Value {
        let result = serde_json::value::to_raw_value(result).unwrap();
        serde_json::to_value(blocks(&result, &Rest::new(bytes_max))).unwrap()
    }

    #[test]
    fn every_kind_of_content_reaches_the_model() {
        let text = json!({"type": "text", "text": "soup"});
        let image = json!({"type": "image", "mimeType": "image/png", "data": "aGk="});
        let sent =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}});
        assert_eq!(shown(&json!({"content": [text, image]})), json!([text, sent]));
        let odd = shown(&json!({"content": [
            {"type": "audio", "mimeType": "audio/wav", "data": "aGk="},
            {"type": "resource", "resource": {"uri": "a:b", "text": "inside"}},
            {"type": "image", "mimeType": "image/tiff", "data": "aGk="},
        ]}));
        let words: Vec<_> =
            odd.as_array().unwrap().iter().map(|block| block["text"].as_str().unwrap()).collect();
        assert!(words[0].starts_with("[audio \"audio/wav\", 4 bytes"), "{words:?}");
        assert!(words[1] == "[resource a:b]\ninside", "{words:?}");
        assert_eq!(odd.as_array().unwrap().len(), 3);
    }

    #[test]
    fn structured_content_stands_in_where_there_is_no_other() {
        assert_eq!(
            shown(&json!({"content": [], "structuredContent": {"a": 1}})),
            json!([{"type": "text", "text": "{\"a\":1}"}])
        );
        assert_eq!(shown(&json!({"content": [{"type": "text", "text": ""}]})), json!([]));
        assert_eq!(
            shown(&json!("no result at all")),
            json!([{"type": "text", "text": "\"no result at all\""}])
        );
    }

    #[test]
    fn all_texts_of_a_result_share_one_budget() {
        let long = json!({"type": "text", "text": "x".repeat(30)});
        let blocks = shown_within(40, &json!({"content": [long, long, long, long]}));
        assert_eq!(blocks[0]["text"], "x".repeat(30));
        assert!(
            blocks[1]["text"].as_str().unwrap().starts_with("xxxxxxxxxx\n[cut here: 10 of 30 bytes"),
            "{blocks}"
        );
        assert!(blocks[2]["text"].as_str().unwrap().contains("0 of 61 bytes"), "{blocks}");
        assert_eq!(blocks.as_array().unwrap().len(), 3, "what is beyond has one note: {blocks}");
    }
}
