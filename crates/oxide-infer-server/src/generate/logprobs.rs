//! Log-probabilities in the two forms that OpenAI's API has.

use super::choice::AnswerToken;
use super::{Generation, PromptRun};
use crate::protocol::params::TokenNames;
use crate::protocol::response::{
    ChatLogprobs, ChatTokenLogprob, ChatTopLogprob, CompletionLogprobs, PromptLogprob, PromptTokenLogprobs,
    TopTokens,
};
use crate::text::Tokenizer;
use oxide_infer::TokenId;
use oxide_infer::sampling::{LogProbs, TokenLogProb};

/// What stands for minus infinity, which JSON cannot write; the value is vLLM's.
const LEAST_LOGPROB: f32 = -9999.0;

/// Names tokens in log-probabilities.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenNamer<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) names: TokenNames,
}

impl<'a> TokenNamer<'a> {
    /// Names tokens as the request asked for.
    pub(super) fn of(generation: &'a Generation) -> Self {
        Self { tokenizer: generation.tokenizer(), names: generation.params().token_names }
    }

    fn name(&self, id: TokenId) -> String {
        match self.names {
            TokenNames::Text => self.tokenizer.token_text(id),
            TokenNames::Ids => format!("token_id:{id}"),
        }
    }

    fn with_bytes(&self, of: &TokenLogProb) -> ChatTopLogprob {
        ChatTopLogprob {
            token: self.name(of.token),
            logprob: writable(of.logprob),
            bytes: self.tokenizer.token_bytes(of.token).to_vec(),
        }
    }

    /// The form of chat answers. Tokens without log-probabilities are left out.
    pub(super) fn chat(&self, tokens: Vec<AnswerToken>) -> ChatLogprobs {
        let with_logprobs = tokens.into_iter().filter_map(|token| token.logprobs);
        let content = with_logprobs.map(|logprobs| ChatTokenLogprob {
            token: self.with_bytes(&logprobs.chosen),
            top_logprobs: logprobs.top.iter().map(|top| self.with_bytes(top)).collect(),
        });
        ChatLogprobs { content: content.collect(), refusal: None }
    }

    /// Adds a token to the form of completions, with the `top` best tokens in its place.
    pub(super) fn completion(
        &self,
        out: &mut CompletionLogprobs,
        id: TokenId,
        text_offset: usize,
        logprobs: Option<&LogProbs>,
        top: usize,
    ) {
        out.text_offset.push(text_offset);
        out.tokens.push(self.name(id));
        out.token_logprobs.push(logprobs.map(|logprobs| writable(logprobs.chosen.logprob)));
        out.top_logprobs.push(logprobs.map(|logprobs| self.top_tokens(logprobs, top)));
    }

    /// The best tokens and the token itself. Of tokens that look the same the most probable one is shown.
    fn top_tokens(&self, logprobs: &LogProbs, top: usize) -> TopTokens {
        let mut entries: Vec<(String, f32)> = Vec::with_capacity(top + 1);
        for shown in logprobs.top.iter().take(top).chain([&logprobs.chosen]) {
            let name = self.name(shown.token);
            if !entries.iter().any(|(taken, _)| *taken == name) {
                entries.push((name, writable(shown.logprob)));
            }
        }
        TopTokens(entries)
    }
}

/// A prompt's log-probabilities in vLLM's form, if asked for: null for the first token, which nothing precedes.
pub(super) fn prompt_logprobs(
    generation: &Generation,
    run: &PromptRun,
) -> Option<Vec<Option<PromptTokenLogprobs>>> {
    let top = generation.params().prompt_logprobs? as usize;
    let tokenizer = generation.tokenizer();
    let named = |of: &TokenLogProb| {
        let decoded_token = tokenizer.token_text(of.token);
        (of.token, PromptLogprob { logprob: writable(of.logprob), rank: of.rank, decoded_token })
    };
    let of_token = |logprobs: &LogProbs| {
        let others = logprobs.top.iter().take(top).filter(|other| other.token != logprobs.chosen.token);
        PromptTokenLogprobs([&logprobs.chosen].into_iter().chain(others).map(named).collect())
    };
    let tokens = run.prompt.tokens.iter().zip(run.logprobs_by_token());
    Some(tokens.map(|(_, logprobs)| logprobs.map(of_token)).collect())
}

fn writable(logprob: f32) -> f32 {
    // `max` also replaces NaN.
    logprob.max(LEAST_LOGPROB)
}
