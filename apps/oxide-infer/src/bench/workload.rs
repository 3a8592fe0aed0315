//! What a benchmark sends and when.

use anyhow::Context;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

/// A prompt as the API takes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Tokens(Vec<u32>),
    Text(String),
}

/// One request of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) prompt: Prompt,
    pub(crate) max_tokens: usize,
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arrivals {
    /// When each request is due, from the start.
    pub(crate) due: Vec<Duration>,
    /// Requests that may be in flight; one that is due waits for its turn.
    pub(crate) concurrency: Option<NonZeroUsize>,
    /// Requests that are sent at once at the start; 0 if they come one by one.
    pub(crate) first_wave: usize,
}

impl Arrivals {
    /// Every request is due at once and `concurrency` bounds those in flight.
    pub(crate) fn closed_loop(count: usize, concurrency: NonZeroUsize) -> Self {
        Self {
            due: vec![Duration::ZERO; count],
            concurrency: Some(concurrency),
            first_wave: count.min(concurrency.get()),
        }
    }

    /// A Poisson process of `rate` requests per second: gaps are exponential with mean `1 / rate`.
    pub(crate) fn open_loop(
        count: usize,
        rate: f64,
        concurrency: Option<NonZeroUsize>,
        rng: &mut Rng,
    ) -> Self {
        let mut at = 0.0;
        let due = (0..count).map(|_| {
            let due = Duration::from_secs_f64(at);
            at -= (1.0 - rng.uniform()).ln() / rate;
            due
        });
        Self { due: due.collect(), concurrency, first_wave: 0 }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded and the same everywhere.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In [0, bound).
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (self.uniform() * f64::from(bound)) as u32
    }
}

/// Ids below this are control tokens in most vocabularies; random prompts leave them out.
const FIRST_TEXT_TOKEN: u32 = 256;

/// `len` random token ids below `vocab_size`.
pub(crate) fn random_tokens(len: usize, vocab_size: u32, rng: &mut Rng) -> Vec<u32> {
    let first = FIRST_TEXT_TOKEN.min(vocab_size / 2);
    (0..len).map(|_| first + rng.below(vocab_size - first)).collect()
}

/// Words that are one token in common vocabularies.
const WORDS: [&str; 32] = [
    "time", "people", "water", "house", "world", "school", "number", "night", "point", "light", "story",
    "group", "place", "money", "music", "power", "paper", "green", "small", "large", "early", "young",
    "short", "river", "north", "south", "table", "white", "black", "happy", "quick", "every",
];

/// A text of `words` random words.
pub(crate) fn random_text(words: usize, rng: &mut Rng) -> String {
    let words: Vec<_> = (0..words).map(|_| WORDS[rng.below(WORDS.len() as u32) as usize]).collect();
    words.join(" ")
}

/// Reads prompts from a file: one a line, or in a `.jsonl` file one object a line with the text in `prompt`. Empty lines
/// are left out.
pub(crate) fn read_prompts(path: &Path) -> anyhow::Result<Vec<String>> {
    #[derive(serde::Deserialize)]
    struct Line {
        prompt: String,
    }
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the prompts {}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let is_jsonl = path.extension().is_some_and(|extension| extension == "jsonl");
    let prompts: anyhow::Result<Vec<String>> = lines
        .map(|(number, line)| {
            if !is_jsonl {
                return Ok(line.to_owned());
            }
            let line: Line = serde_json::from_str(line).with_context(|| {
                format!("line {} of {} is not {{\"prompt\": …}}", number + 1, path.display())
            })?;
            Ok(line.prompt)
        })
        .collect();
    let prompts = prompts?;
    anyhow::ensure!(!prompts.is_empty(), "{} has no prompts", path.display());
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The first outputs for seed 1234567 of the reference implementation by Vigna.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn poisson_arrivals_have_the_mean_and_spread_of_the_rate() {
        let arrivals = Arrivals::open_loop(20_001, 50.0, None, &mut Rng::new(1));
        assert_eq!(arrivals.due[0], Duration::ZERO);
        let gaps: Vec<f64> = arrivals.due.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // For an exponential distribution, mean and standard deviation are both 1 / rate.
        assert!((mean - 0.02).abs() < 0.0006, "{mean}");
        assert!((variance.sqrt() - 0.02).abs() < 0.001, "{}", variance.sqrt());
    }

    #[test]
    fn random_prompts_have_the_length_and_stay_in_the_vocabulary() {
        let mut rng = Rng::new(7);
        let tokens = random_tokens(5000, 300, &mut rng);
        assert_eq!(tokens.len(), 5000);
        assert!(tokens.iter().all(|&token| (150..300).contains(&token)));
        assert_eq!(random_text(12, &mut rng).split(' ').count(), 12);
        assert_eq!(random_tokens(8, 30_000, &mut Rng::new(3)), random_tokens(8, 30_000, &mut Rng::new(3)));
    }

    #[test]
    fn prompt_files_are_lines_or_jsonl_and_errors_name_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        assert_eq!(read_prompts(&write("a.txt", "one\n\ntwo\n")).unwrap(), ["one", "two"]);
        assert_eq!(
            read_prompts(&write("b.jsonl", "{\"prompt\": \"x\\ny\", \"id\": 1}\n")).unwrap(),
            ["x\ny"]
        );
        let error = read_prompts(&write("c.jsonl", "{\"prompt\": \"x\"}\n{}\n")).unwrap_err();
        assert!(format!("{error:#}").contains("line 2") && format!("{error:#}").contains("`prompt`"));
        assert!(read_prompts(&write("d.txt", "\n")).unwrap_err().to_string().contains("no prompts"));
    }
}
