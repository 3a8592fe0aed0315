//! `oxide-infer serve`.

use crate::cli::options::{PoolingChoice, ReasoningParser, ServeArgs, ToolParser};
use crate::model::ModelName;
use crate::{load, terminal};
use anyhow::Context;
use oxide_infer_engine::request::Pooling;
use oxide_infer_server::text::SpecialInContent;
use oxide_infer_server::{
    ApiKey, Cors, Limits, Page, ReasoningStyle, ServeError, Server, ServerConfig, ToolStyle,
};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// The engine failed or hangs: nothing is wrong with the command, and a supervisor should start it anew.
const ENGINE_FAILED: u8 = 70;
/// A second signal while the server drains ends it at once.
const STOPPED_TWICE: i32 = 130;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    terminal::start_logging(&args.model.log)?;
    let runtime = super::runtime()?;
    let result = runtime.block_on(serve(args));
    // A model that still loads must not hold up the end.
    runtime.shutdown_background();
    result
}

async fn serve(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    // What is wrong with the options should not wait for a model to load.
    let name = ModelName::parse(&args.model.model)?;
    let mut config = server_config(args, &name)?;
    let listener = oxide_infer_server::listen(&config).await?;
    let mut shutdown = Box::pin(shutdown()?);
    let special = match args.escape_special_tokens {
        true => SpecialInContent::Escape,
        false => SpecialInContent::Parse,
    };
    let loaded = tokio::select! {
        loaded = load::load(&args.model, special, args.max_waiting) => loaded?,
        () = &mut shutdown => return Ok(ExitCode::SUCCESS),
    };
    config.sampling_defaults = loaded.defaults.into();
    config.device = loaded.device_name;
    exit_code(Server::new(config, loaded.engine, loaded.text)?.run(listener, shutdown).await)
}

/// How the process ends after the server has. An engine that failed is told apart from what the user could mend.
fn exit_code(served: Result<(), ServeError>) -> anyhow::Result<ExitCode> {
    match served {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error @ (ServeError::EngineFailed(_) | ServeError::EngineHung)) => {
            terminal::print_error(&error.into());
            Ok(ExitCode::from(ENGINE_FAILED))
        }
        Err(error) => Err(error.into()),
    }
}

fn server_config(args: &ServeArgs, name: &ModelName) -> anyhow::Result<ServerConfig> {
    let mut config = ServerConfig::new(name.served_name());
    config.host.clone_from(&args.host);
    config.port = args.port;
    config.model_source.clone_from(&args.model.model);
    if !args.served_model_name.is_empty() {
        config.served_model_names.clone_from(&args.served_model_name);
    }
    anyhow::ensure!(args.api_key.iter().all(|key| !key.is_empty()), "--api-key must not be empty");
    config.api_keys = args.api_key.iter().map(ApiKey::new).collect();
    config.cors = cors(&args.cors_origin)?;
    config.page = if args.no_ui { Page::Off } else { Page::Served };
    config.drain_timeout = args.drain_timeout;
    config.metrics_prefix.clone_from(&args.metrics_prefix);
    config.tool_style = match args.tool_parser {
        ToolParser::Auto => ToolStyle::Auto,
        ToolParser::Hermes => ToolStyle::Hermes,
        ToolParser::Llama3 => ToolStyle::Llama3,
        ToolParser::Mistral => ToolStyle::Mistral,
    };
    config.reasoning_style = match args.reasoning_parser {
        ReasoningParser::Auto => ReasoningStyle::Auto,
        ReasoningParser::Think => ReasoningStyle::Think,
        ReasoningParser::Mistral => ReasoningStyle::Mistral,
        ReasoningParser::Off => ReasoningStyle::Off,
    };
    config.pooling = match args.pooling {
        PoolingChoice::Last => Pooling::Last,
        PoolingChoice::Mean => Pooling::Mean,
    };
    config.limits = Limits {
        max_body_bytes: usize::try_from(args.max_body.0).context("--max-body is too large")?,
        max_choices: args.max_choices,
        ..Limits::default()
    };
    Ok(config)
}

fn cors(origins: &[String]) -> anyhow::Result<Cors> {
    if origins.is_empty() {
        return Ok(Cors::Off);
    }
    if origins.iter().any(|origin| origin == "*") {
        return Ok(Cors::AnyOrigin);
    }
    let parsed = origins.iter().map(|origin| {
        let value = origin.parse().ok().filter(|_| is_origin(origin));
        value
            .with_context(|| format!("--cors-origin {origin:?} is not an origin such as https://example.com"))
    });
    Ok(Cors::Origins(parsed.collect::<anyhow::Result<_>>()?))
}

/// Whether it is what a browser can send as `Origin`: a scheme and a host, perhaps a port, and no path.
fn is_origin(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, host)| {
        let is_plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        !scheme.is_empty() && !host.is_empty() && is_plain(scheme) && is_plain(host)
    })
}

/// Resolves at the first SIGTERM or SIGINT. The signals are caught from now on, so that one that comes while the model
/// loads still ends the server in good order.
fn shutdown() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::warn!("stopped by a second signal; requests in flight are lost");
            std::process::exit(STOPPED_TWICE);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over HTTP, `/health` and the request in flight of an engine that fails so are tested in oxide-infer-server.
    #[test]
    fn a_lost_device_and_a_hung_engine_end_the_process_with_70_and_nothing_else_does() {
        let lost = ServeError::EngineFailed("CUDA_ERROR_ILLEGAL_ADDRESS".to_owned());
        assert_eq!(exit_code(Err(lost)).unwrap(), ExitCode::from(70));
        assert_eq!(exit_code(Err(ServeError::EngineHung)).unwrap(), ExitCode::from(70));
        assert_eq!(exit_code(Ok(())).unwrap(), ExitCode::SUCCESS);
        // `main` ends with 1 for these.
        let io = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        let taken = ServeError::Listen { address: "localhost:8000".to_owned(), source: io };
        assert!(exit_code(Err(taken)).unwrap_err().to_string().contains("8000"));
    }

    #[test]
    fn origins_are_none_all_or_a_list() {
        let list = |origins: &[&str]| cors(&origins.iter().map(|&o| o.to_owned()).collect::<Vec<_>>());
        assert_eq!(list(&[]).unwrap(), Cors::Off);
        assert_eq!(list(&["https://a.example", "*"]).unwrap(), Cors::AnyOrigin);
        assert!(
            matches!(list(&["https://a.example"]).unwrap(), Cors::Origins(origins) if origins.len() == 1)
        );
        assert!(list(&["bad\norigin"]).unwrap_err().to_string().contains("bad\\norigin"));
        for wrong in ["no origin", "example.com", "https://a.example/path", "https://", ""] {
            assert!(list(&[wrong]).unwrap_err().to_string().contains("is not an origin"), "{wrong}");
        }
    }
}
