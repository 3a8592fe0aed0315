//! How vocabulary entries spell bytes.

use serde::Deserialize;
use tokenizers::DecoderWrapper;

use super::LoadError;

/// How the text of a vocabulary entry stands for bytes: the decoder part of a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    /// Each character is one byte, in GPT-2's printable alphabet.
    ByteLevel,
    /// Plain text with a visible stand-in for the space.
    SentencePiece {
        /// The stand-in, `▁`.
        space: char,
        /// `<0x0A>` is the byte 0x0A.
        byte_fallback: bool,
        /// How many spaces to drop at the start of a decoded sequence.
        strip_leading: usize,
    },
}

impl Codec {
    /// Recognises the decoder of a `tokenizer.json`.
    pub(super) fn of_decoder(decoder: Option<&DecoderWrapper>) -> Result<Self, LoadError> {
        let Some(decoder) = decoder else {
            return Err(LoadError::UnsupportedDecoder("none".into()));
        };
        let unsupported = |json: String| LoadError::UnsupportedDecoder(json);
        let json = serde_json::to_string(decoder).map_err(|error| unsupported(error.to_string()))?;
        let steps = match serde_json::from_str(&json) {
            Ok(DecoderConfig::Sequence { decoders }) => decoders,
            Ok(single) => vec![single],
            Err(_) => return Err(unsupported(json)),
        };
        Self::of_steps(&steps).ok_or_else(|| unsupported(json))
    }

    fn of_steps(steps: &[DecoderConfig]) -> Option<Self> {
        if let [DecoderConfig::ByteLevel] = steps {
            return Some(Self::ByteLevel);
        }
        let (mut space, mut fallback, mut strip) = (None, false, 0);
        for step in steps {
            match step {
                DecoderConfig::Replace { pattern: ReplacePattern::String(from), content }
                    if content == " " =>
                {
                    space = single_char(from);
                }
                DecoderConfig::Metaspace { replacement, prepend_scheme } => {
                    space = Some(*replacement);
                    strip = usize::from(prepend_scheme != "never");
                }
                DecoderConfig::ByteFallback => fallback = true,
                DecoderConfig::Fuse => {}
                DecoderConfig::Strip { content: ' ', start, stop: 0 } => strip = *start,
                _ => return None,
            }
        }
        Some(Self::SentencePiece { space: space?, byte_fallback: fallback, strip_leading: strip })
    }

    /// Appends the bytes that `piece` stands for.
    pub(super) fn append_bytes(&self, piece: &str, out: &mut Vec<u8>) {
        match self {
            Self::ByteLevel => {
                let start = out.len();
                for c in piece.chars() {
                    let Some(byte) = byte_level_byte(c) else {
                        // A token outside the alphabet, such as an added one with a space, stands for itself.
                        out.truncate(start);
                        return out.extend_from_slice(piece.as_bytes());
                    };
                    out.push(byte);
                }
            }
            Self::SentencePiece { space, byte_fallback, .. } => match fallback_byte(piece) {
                Some(byte) if *byte_fallback => out.push(byte),
                _ => {
                    let mut utf8 = [0; 4];
                    for c in piece.chars() {
                        let c = if c == *space { ' ' } else { c };
                        out.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes());
                    }
                }
            },
        }
    }

    /// How many leading spaces a sequence decoded from its start loses.
    pub(super) fn strip_leading(&self) -> usize {
        match self {
            Self::ByteLevel => 0,
            Self::SentencePiece { strip_leading, .. } => *strip_leading,
        }
    }

    /// How many U+FFFD stand for `invalid` bytes in a row: one for a truncated sequence in byte-level text, one for
    /// each byte in SentencePiece text, as the decoders of the `tokenizers` crate do.
    pub(super) fn replacements(&self, invalid: usize) -> usize {
        match self {
            Self::ByteLevel => 1,
            Self::SentencePiece { .. } => invalid,
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum DecoderConfig {
    ByteLevel,
    ByteFallback,
    Fuse,
    Metaspace {
        replacement: char,
        #[serde(default)]
        prepend_scheme: String,
    },
    Replace {
        pattern: ReplacePattern,
        content: String,
    },
    Sequence {
        decoders: Vec<DecoderConfig>,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
enum ReplacePattern {
    String(String),
    Regex(#[expect(dead_code, reason = "only named to be told apart")] String),
}

fn single_char(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// The byte that a character of GPT-2's byte alphabet stands for: printable Latin-1 stands for itself, the 68 other
/// bytes are U+0100 and up, in order.
fn byte_level_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The byte of a token of the form `<0x0A>`.
fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    fn decoded(codec: &Codec, piece: &str) -> Vec<u8> {
        let mut out = Vec::new();
        codec.append_bytes(piece, &mut out);
        out
    }

    #[test]
    fn the_byte_alphabet_covers_each_byte_once() {
        let mut bytes: Vec<u8> = ByteLevel::alphabet().into_iter().filter_map(byte_level_byte).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn byte_level_pieces_decode_as_published() {
        // "Ġ" is the space, "Ċ" the newline, "âĢĻ" the three bytes of ’ (GPT-2's vocabulary).
        assert_eq!(decoded(&Codec::ByteLevel, "ĠtĊ"), b" t\n");
        assert_eq!(decoded(&Codec::ByteLevel, "âĢĻ"), "’".as_bytes());
        assert_eq!(
            decoded(&Codec::ByteLevel, "<｜begin▁of▁sentence｜>"),
            "<｜begin▁of▁sentence｜>".as_bytes()
        );
    }

    #[test]
    fn sentencepiece_pieces_decode_spaces_and_bytes() {
        let codec = Codec::SentencePiece { space: '▁', byte_fallback: true, strip_leading: 1 };
        assert_eq!(decoded(&codec, "▁two▁words"), b" two words");
        assert_eq!(decoded(&codec, "<0xE5>"), [0xE5]);
        assert_eq!(decoded(&codec, "<0xE>"), b"<0xE>");
        assert_eq!(decoded(&codec, "<0x+5>"), b"<0x+5>");
    }

    #[test]
    fn decoders_are_recognised_and_others_named() {
        let of = |json: &str| Codec::of_decoder(Some(&serde_json::from_str(json).unwrap()));
        assert_eq!(
            of(r#"{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true}"#).unwrap(),
            Codec::ByteLevel
        );
        let llama = r#"{"type":"Sequence","decoders":[
            {"type":"Replace","pattern":{"String":"▁"},"content":" "},
            {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}"#;
        let expected = Codec::SentencePiece { space: '▁', byte_fallback: true, strip_leading: 1 };
        assert_eq!(of(llama).unwrap(), expected);
        let error = of(r###"{"type":"WordPiece","prefix":"##","cleanup":true}"###);
        assert!(error.unwrap_err().to_string().contains("WordPiece"));
    }
}
