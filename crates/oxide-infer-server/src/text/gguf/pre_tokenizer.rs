//! What `tokenizer.ggml.pre` stands for.
//!
//! The names are llama.cpp's. The patterns are those of the published `tokenizer.json` files, which the names stand
//! for, and not llama.cpp's rewritten ones.

use tokenizers::{
    PreTokenizerWrapper, SplitDelimiterBehavior,
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{AddBos, LoadError, vocabulary_error};

/// A pre-tokenizer and what goes with it.
#[derive(Debug)]
pub(super) struct PreTokenizerSpec {
    names: &'static [&'static str],
    /// Each step splits the pieces of the one before.
    steps: &'static [Step],
    /// Text is brought to Unicode normalization form C first.
    pub(super) nfc: bool,
    /// A whole piece that is in the vocabulary is taken as it is.
    pub(super) ignore_merges: bool,
    pub(super) add_bos: AddBos,
}

/// One way of splitting: what matches becomes a piece, and so does what lies between matches.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Each numeric character.
    Digits,
    Regex(&'static str),
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const SPECS: &[PreTokenizerSpec] = &[
    PreTokenizerSpec {
        names: &["default"],
        steps: &[
            Step::Regex(r"[\p{P}\$\+<=>\^~\|]+"),
            Step::Regex(GPT2),
            Step::Regex(r"\p{N}+"),
            Step::Regex("[0-9][0-9][0-9]"),
        ],
        nfc: false,
        ignore_merges: false,
        add_bos: AddBos::No,
    },
    PreTokenizerSpec {
        names: &["gpt-2", "phi-2"],
        steps: &[Step::Regex(GPT2)],
        nfc: false,
        ignore_merges: false,
        add_bos: AddBos::No,
    },
    PreTokenizerSpec {
        names: &["smollm", "starcoder", "refact", "codeshell"],
        steps: &[Step::Digits, Step::Regex(GPT2)],
        nfc: false,
        ignore_merges: false,
        add_bos: AddBos::No,
    },
    PreTokenizerSpec {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        steps: &[Step::Regex(LLAMA3)],
        nfc: false,
        ignore_merges: true,
        add_bos: AddBos::Yes,
    },
    PreTokenizerSpec {
        names: &["dbrx", "smaug-bpe"],
        steps: &[Step::Regex(LLAMA3)],
        nfc: false,
        ignore_merges: false,
        add_bos: AddBos::No,
    },
    PreTokenizerSpec {
        names: &["qwen2", "deepseek-r1-qwen"],
        steps: &[Step::Regex(QWEN2)],
        nfc: true,
        ignore_merges: false,
        add_bos: AddBos::No,
    },
    PreTokenizerSpec {
        names: &["deepseek-v3"],
        steps: &[Step::Regex(r"\p{N}{1,3}"), Step::Regex("[一-龥぀-ゟ゠-ヿ]+"), Step::Regex(DEEPSEEK_V3)],
        nfc: false,
        ignore_merges: false,
        add_bos: AddBos::No,
    },
    PreTokenizerSpec {
        names: &["tekken"],
        steps: &[Step::Regex(TEKKEN)],
        nfc: false,
        ignore_merges: true,
        add_bos: AddBos::Yes,
    },
    PreTokenizerSpec {
        names: &["gpt-4o", "llama4"],
        steps: &[Step::Regex(GPT4O)],
        nfc: false,
        ignore_merges: false,
        add_bos: AddBos::No,
    },
];

impl PreTokenizerSpec {
    /// The pre-tokenizer of that name.
    pub(super) fn named(name: &str) -> Result<&'static Self, LoadError> {
        SPECS.iter().find(|spec| spec.names.contains(&name)).ok_or_else(|| {
            LoadError::UnsupportedPreTokenizer {
                name: name.to_owned(),
                supported: SPECS.iter().flat_map(|spec| spec.names).copied().collect(),
            }
        })
    }

    pub(super) fn build(&self) -> Result<Sequence, LoadError> {
        let mut steps = Vec::with_capacity(self.steps.len() + 1);
        for step in self.steps {
            steps.push(match step {
                Step::Digits => PreTokenizerWrapper::from(Digits::new(true)),
                Step::Regex(pattern) => {
                    let pattern = SplitPattern::Regex((*pattern).to_owned());
                    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
                    PreTokenizerWrapper::from(split.map_err(vocabulary_error)?)
                }
            });
        }
        steps.push(PreTokenizerWrapper::from(ByteLevel::new(false, true, false)));
        Ok(Sequence::new(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_listed_once_and_builds() {
        let mut names: Vec<_> = SPECS.iter().flat_map(|spec| spec.names).collect();
        for name in &names {
            PreTokenizerSpec::named(name).unwrap().build().unwrap();
        }
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let message = PreTokenizerSpec::named("qwen9").unwrap_err().to_string();
        assert!(
            message.contains("\"qwen9\"") && message.contains("qwen2") && message.contains("smollm"),
            "{message}"
        );
    }
}
