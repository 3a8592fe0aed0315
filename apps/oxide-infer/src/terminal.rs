//! What the user sees: output, log lines and errors.

use crate::cli::options::{LogFormat, LogOptions};
use crate::cli::values::ByteSize;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tracing_subscriber::EnvFilter;

/// Writes to standard output. (`print!` panics when the reader has gone, as `head` does.)
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Prints an error with its causes. Says nothing when the reader of standard output has gone.
pub(crate) fn print_error(error: &anyhow::Error) {
    let gone = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    if error.chain().any(|cause| cause.downcast_ref().is_some_and(gone)) {
        return;
    }
    // `eprintln!` would panic if standard error is closed.
    writeln!(std::io::stderr(), "error: {}", message(error)).ok();
}

/// An error and its causes in one text, each once.
pub(crate) fn message(error: &anyhow::Error) -> String {
    let mut message = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !message.contains(&cause) {
            message.push_str(": ");
            message.push_str(&cause);
        }
    }
    message
}

/// Starts logging to standard error.
pub(crate) fn start_logging(options: &LogOptions) -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .parse(&options.log_level)
        .with_context(|| format!("--log-level {:?} is not a level or filter", options.log_level))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    match options.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Progress over a number of bytes: a bar on a terminal, log lines otherwise.
pub(crate) struct Progress {
    bar: ProgressBar,
    total: u64,
    started: Instant,
    /// How many of [`LOG_STEPS`] have been logged.
    logged: AtomicU64,
}

/// Log lines come at every quarter.
const LOG_STEPS: u64 = 4;

impl Progress {
    pub(crate) fn start(what: String, total: u64) -> Self {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if bar.is_hidden() {
            tracing::info!("{what}: {}", ByteSize(total));
        }
        let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        Self { bar, total, started: Instant::now(), logged: AtomicU64::new(0) }
    }

    /// `done` of the bytes are done.
    pub(crate) fn set(&self, done: u64) {
        self.bar.set_position(done);
        let step = done.saturating_mul(LOG_STEPS).checked_div(self.total).unwrap_or(LOG_STEPS);
        if self.bar.is_hidden() && done < self.total && self.logged.fetch_max(step, Ordering::Relaxed) < step
        {
            tracing::info!("{} % of {}", step * 100 / LOG_STEPS, ByteSize(self.total));
        }
    }

    pub(crate) fn finish(&self, verb: &str) {
        self.bar.finish_and_clear();
        tracing::info!("{verb} {} in {:.1} s", ByteSize(self.total), self.started.elapsed().as_secs_f64());
    }
}

/// Ends when the user presses Ctrl-C. (Where that cannot be known it never ends, and answers go on to their end.)
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
