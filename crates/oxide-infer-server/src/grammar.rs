//! Answers held to a format: grammars are compiled here, and followed token by token.
//!
//! [`Grammars::compile`] makes a [`Grammar`] of what a request asks for, within limits of size, time and memory. Each
//! answer follows it with a [`Guide`], which turns the answer's tokens into the mask of the next one on threads of its
//! own, the `masks` workers.

mod answer;
mod cache;
mod formats;
mod guide;
mod lark;
mod numbers;
mod references;
mod schema;
mod source;
#[cfg(test)]
mod suite;
mod workers;

pub(crate) use answer::{AnswerGrammar, CallGrammar, FunctionGrammar, TextGrammar};
pub(crate) use guide::{Guide, Step};
pub(crate) use source::{GrammarSource, GrammarSpec};

use crate::config::Limits;
use crate::error::ApiError;
use crate::text::TextModel;
use answer::Means;
use cache::Cache;
use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use oxide_infer::TokenId;
use oxide_infer::sampling::TokenMask;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use workers::Workers;

/// Grammars that are compiled at the same time; further ones wait.
const COMPILERS: usize = 2;

/// How long a request waits for its turn to compile.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// Stack of a thread that compiles, of which only what is used takes memory. Compilation recurses with the nesting of
/// the grammar and along its references, whose number the limits of size bound.
const COMPILER_STACK: usize = 512 << 20;

/// Threads that compute masks; a mask takes tens of microseconds as a rule, milliseconds at worst.
const MAX_MASK_WORKERS: usize = 8;

/// Compiled grammars that are kept.
const CACHED: usize = 32;

/// What compiles grammars for one model, and remembers them.
pub(crate) struct Grammars {
    text: Arc<TextModel>,
    vocab_size: usize,
    limits: Limits,
    turns: Arc<Semaphore>,
    cache: Mutex<Cache<Arc<Grammar>>>,
    /// Made for the first grammar, because it takes memory and a moment.
    machinery: OnceLock<Result<Machinery, String>>,
}

/// A compiled grammar.
pub(crate) struct Grammar {
    /// The field it came in.
    param: String,
    /// At the beginning of an answer. Answers take copies.
    start: Mutex<Matcher>,
    first_mask: Arc<TokenMask>,
    workers: Arc<Workers>,
    vocab_size: usize,
}

struct Machinery {
    factory: ParserFactory,
    workers: Arc<Workers>,
}

impl Grammars {
    /// For answers of `text`'s model, whose engine has `vocab_size` tokens.
    pub(crate) fn new(text: Arc<TextModel>, vocab_size: usize, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            text,
            vocab_size,
            limits: limits.clone(),
            turns: Arc::new(Semaphore::new(COMPILERS)),
            cache: Mutex::new(Cache::new(CACHED)),
            machinery: OnceLock::new(),
        })
    }

    /// Compiles a grammar, or finds it among those compiled before.
    ///
    /// # Errors
    /// The grammar is wrong, unsupported, or too large to be compiled within the limits; the error names its field.
    pub(crate) async fn compile(self: &Arc<Self>, spec: GrammarSpec) -> Result<Arc<Grammar>, ApiError> {
        let key = spec.key();
        if let Some(grammar) = self.cached(&key) {
            return Ok(grammar);
        }
        let turn = self.turn().await?;
        // Another request may have compiled it meanwhile.
        if let Some(grammar) = self.cached(&key) {
            return Ok(grammar);
        }
        let (sender, compiled) = oneshot::channel();
        let (param, limit) = (spec.param.clone(), self.limits.grammar_timeout);
        let grammars = self.clone();
        let work = move || {
            // The turn is the work's and not the client's, who may be told before it is done that it takes too long.
            let _turn = turn;
            let compiled = grammars.compile_here(&spec).map(Arc::new);
            if let Ok(grammar) = &compiled {
                grammars.lock_cache().insert(key, grammar.clone());
            }
            // A client that is gone needs no grammar.
            let _ = sender.send(compiled);
        };
        let thread = thread::Builder::new().name("grammar".to_owned()).stack_size(COMPILER_STACK);
        thread.spawn(work).map_err(|error| ApiError::Internal(format!("no thread to compile: {error}")))?;
        let reason = match timeout(limit, compiled).await {
            Ok(Ok(Ok(grammar))) => return Ok(grammar),
            Ok(Ok(Err(error))) => return Err(error),
            Ok(Err(_)) => "cannot be compiled".to_owned(),
            Err(_) => format!("takes longer than {} s to compile; make it smaller", limit.as_secs()),
        };
        Err(ApiError::InvalidValue { param, reason })
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let turn = timeout(TURN_TIMEOUT, self.turns.clone().acquire_owned()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| ApiError::Busy {
            reason: format!("{COMPILERS} grammars are being compiled"),
            retry_after: Duration::from_secs(1),
        })
    }

    fn compile_here(&self, spec: &GrammarSpec) -> Result<Grammar, ApiError> {
        let invalid = |reason: String| ApiError::InvalidValue { param: spec.param.clone(), reason };
        let machinery = self.machinery.get_or_init(|| Machinery::new(&self.text, self.vocab_size));
        let machinery = machinery.as_ref().map_err(|error| ApiError::Internal(error.clone()))?;
        let (limits, tokenizer) = (&self.limits, self.text.tokenizer());
        let means = Means { limits, tokenizer, factory: &machinery.factory };
        let grammar = spec.source.to_grammar(&means).map_err(|refusal| ApiError::InvalidValue {
            param: refusal.param.unwrap_or_else(|| spec.param.clone()),
            reason: refusal.reason,
        })?;
        let mut start = Matcher::new(machinery.factory.create_parser(grammar));
        let first = guide::mask(&mut start, self.vocab_size).map_err(|reason| {
            invalid(format!("cannot be compiled: {}", spec.source.locate(&machinery.factory, &reason)))
        })?;
        let Step::Mask(first_mask) = first else {
            return Err(invalid("allows only the empty answer".to_owned()));
        };
        Ok(Grammar {
            param: spec.param.clone(),
            start: Mutex::new(start),
            first_mask,
            workers: machinery.workers.clone(),
            vocab_size: self.vocab_size,
        })
    }

    fn cached(&self, key: &str) -> Option<Arc<Grammar>> {
        self.lock_cache().find(key)
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, Cache<Arc<Grammar>>> {
        // Whatever panicked while it had the lock, each entry is whole.
        self.cache.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("param", &self.param).finish_non_exhaustive()
    }
}

impl Grammar {
    /// The mask of every answer's first token.
    pub(crate) fn first_mask(&self) -> Arc<TokenMask> {
        self.first_mask.clone()
    }

    /// The error of an answer that cannot be held to the grammar any further.
    pub(crate) fn failure(&self, reason: &str) -> ApiError {
        ApiError::InvalidValue { param: self.param.clone(), reason: format!("cannot be followed: {reason}") }
    }
}

impl Machinery {
    fn new(text: &TextModel, vocab_size: usize) -> Result<Self, String> {
        let fault = |error: &dyn std::fmt::Display| format!("grammars cannot be set up: {error}");
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(token_trie(text, vocab_size)));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| fault(&error))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        let threads = thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
        let workers = Workers::start(threads.min(MAX_MASK_WORKERS)).map_err(|error| fault(&error))?;
        Ok(Self { factory, workers: Arc::new(workers) })
    }
}

/// The defaults bound the time of a mask to some 20 ms. States of the lexer take 1 to 2 kB each; ours is a bound of about
/// 100 MB for each answer that is made to need them all, a fifth of the default.
fn parser_limits() -> ParserLimits {
    ParserLimits { max_lexer_states: 50_000, verbose_errors: false, ..ParserLimits::default() }
}

/// The bytes of all tokens. Special tokens are text only where a grammar names them, and tokens that only pad the
/// vocabulary are never allowed.
fn token_trie(text: &TextModel, vocab_size: usize) -> TokTrie {
    let tokenizer = text.tokenizer();
    let bytes = |index: usize| {
        let id = TokenId(index as u32);
        match tokenizer.is_special(id) {
            true => [&[TokTrie::SPECIAL_TOKEN_MARKER], tokenizer.token_bytes(id)].concat(),
            false => tokenizer.token_bytes(id).to_vec(),
        }
    };
    let words: Vec<Vec<u8>> = (0..vocab_size).map(bytes).collect();
    let ends: Vec<u32> =
        text.eos_ids().iter().map(|id| id.0).filter(|&id| (id as usize) < vocab_size).collect();
    let main_end = ends.first().copied().unwrap_or(llguidance::toktrie::INVALID_TOKEN);
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, main_end), &words);
    if ends.is_empty() { trie } else { trie.with_eos_tokens(&ends) }
}
