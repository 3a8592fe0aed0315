//! `oxide-infer run`.

use crate::cli::options::RunArgs;
use crate::generate::End;
use crate::{load, terminal};
use anyhow::Context;
use oxide_infer_server::text::AddSpecialTokens;
use serde_json::json;
use std::io::{IsTerminal, Read};
use std::process::ExitCode;

/// What a shell gives a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    terminal::start_logging(&args.model.log)?;
    let prompt = read_prompt(&args.prompt)?;
    let runtime = super::runtime()?;
    let generator = runtime.block_on(load::generator(&args.model))?;
    let tokens = if args.raw {
        generator.text.encode(&prompt, AddSpecialTokens::Add)?
    } else {
        let mut messages = Vec::new();
        if let Some(system) = &args.system {
            messages.push(json!({"role": "system", "content": system}));
        }
        messages.push(json!({"role": "user", "content": prompt}));
        generator.encode_chat(&messages)?
    };
    let answer = runtime.block_on(generator.answer(
        tokens,
        &args.sampling,
        terminal::interrupted(),
        terminal::print,
    ))?;
    if std::io::stdout().is_terminal() || !answer.text.ends_with('\n') {
        terminal::print("\n")?;
    }
    match answer.end {
        End::Complete => Ok(ExitCode::SUCCESS),
        End::Length => {
            tracing::info!("the answer ended at its limit of tokens (--max-tokens, --max-model-len)");
            Ok(ExitCode::SUCCESS)
        }
        End::Interrupted => Ok(ExitCode::from(INTERRUPTED)),
    }
}

fn read_prompt(prompt: &str) -> anyhow::Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the prompt from standard input")?;
    Ok(text)
}
