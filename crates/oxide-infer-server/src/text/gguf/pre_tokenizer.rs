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

/// Chinese, Korean, and what lies between, as DeepSeek's first tokenizers have it.
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
/// The letters with case that `deepseek-llm` lists.
const DEEPSEEK_LLM_LETTERS: &str = concat!(
    r"\s?[",
    r"\x{41}-\x{5A}\x{61}-\x{7A}\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}",
    r"\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}",
    r"\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}",
    r"\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}",
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}",
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}",
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}",
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}",
    r"\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}",
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}",
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}",
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}",
    r"\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}",
    r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}",
    r"\x{1E900}-\x{1E943}",
    r"]+",
);

const PLAIN: PreTokenizerSpec =
    PreTokenizerSpec { names: &[], steps: &[], nfc: false, ignore_merges: false, add_bos: AddBos::No };

const SPECS: &[PreTokenizerSpec] = &[
    PreTokenizerSpec {
        names: &["default"],
        steps: &[
            Step::Regex(r"[\p{P}\$\+<=>\^~\|]+"),
            Step::Regex(GPT2),
            Step::Regex(r"\p{N}+"),
            Step::Regex("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    PreTokenizerSpec { names: &["gpt-2", "phi-2"], steps: &[Step::Regex(GPT2)], ..PLAIN },
    PreTokenizerSpec {
        names: &["smollm", "starcoder", "refact", "codeshell"],
        steps: &[Step::Digits, Step::Regex(GPT2)],
        ..PLAIN
    },
    PreTokenizerSpec {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        steps: &[Step::Regex(LLAMA3)],
        ignore_merges: true,
        add_bos: AddBos::Yes,
        ..PLAIN
    },
    PreTokenizerSpec { names: &["dbrx", "smaug-bpe"], steps: &[Step::Regex(LLAMA3)], ..PLAIN },
    PreTokenizerSpec {
        names: &["qwen2", "deepseek-r1-qwen"],
        steps: &[Step::Regex(QWEN2)],
        nfc: true,
        ..PLAIN
    },
    PreTokenizerSpec {
        names: &["deepseek-llm"],
        steps: &[
            Step::Regex("[\r\n]"),
            Step::Regex(DEEPSEEK_LLM_LETTERS),
            Step::Regex(r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"),
            Step::Regex(r"\s+$"),
            Step::Regex(DEEPSEEK_CJK),
            Step::Digits,
        ],
        ..PLAIN
    },
    PreTokenizerSpec {
        names: &["deepseek-coder"],
        steps: &[
            Step::Regex("[\r\n]"),
            Step::Regex(r"\s?\p{L}+"),
            Step::Regex(r"\s?\p{P}+"),
            Step::Regex(DEEPSEEK_CJK),
            Step::Digits,
        ],
        ..PLAIN
    },
    PreTokenizerSpec {
        names: &["deepseek-v3"],
        steps: &[
            Step::Regex(r"\p{N}{1,3}"),
            Step::Regex(r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"),
            Step::Regex(DEEPSEEK_V3),
        ],
        ..PLAIN
    },
    PreTokenizerSpec {
        names: &["tekken"],
        steps: &[Step::Regex(TEKKEN)],
        ignore_merges: true,
        add_bos: AddBos::Yes,
        ..PLAIN
    },
    PreTokenizerSpec { names: &["gpt-4o", "llama4"], steps: &[Step::Regex(GPT4O)], ..PLAIN },
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
