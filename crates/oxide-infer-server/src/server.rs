//! The server's life: checked configuration, listening, drain, end.

use crate::app::App;
use crate::config::ServerConfig;
use crate::text::TextModel;
use crate::{connection, router};
use axum::Router;
use oxide_infer_engine::{DrainOutcome, EngineHandle, Health};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

/// How long a server whose engine has failed still tells so, before it ends.
const FAILURE_GRACE: Duration = Duration::from_secs(3);

/// How long clients may take to read the end of their answers, when the drain has taken all its time.
const DELIVERY_GRACE: Duration = Duration::from_secs(1);

/// A server for one engine and one model's text.
#[derive(Clone, Debug)]
pub struct Server {
    app: Arc<App>,
}

/// Why a server could not start, or ended other than by its shutdown signal.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration makes no sense.
    #[error("{setting} {reason}, got {value}")]
    Config {
        /// What was set.
        setting: &'static str,
        /// What is expected.
        reason: &'static str,
        /// The value.
        value: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The engine failed; every request in flight has been told so.
    #[error("the engine has failed: {0}")]
    EngineFailed(String),
    /// The engine did not stop when it was told to.
    #[error("the engine did not stop within the drain timeout: a step hangs")]
    EngineHung,
}

/// Checks `config` and takes its address, which can be done before a model is loaded. Connections wait until
/// [`Server::run`] serves them.
///
/// # Errors
/// The configuration makes no sense, or its address cannot be listened on.
pub async fn listen(config: &ServerConfig) -> Result<TcpListener, ServeError> {
    check(config)?;
    TcpListener::bind((config.host.as_str(), config.port))
        .await
        .map_err(|source| ServeError::Listen { address: format!("{}:{}", config.host, config.port), source })
}

impl Server {
    /// A server that does not listen yet.
    ///
    /// # Errors
    /// [`ServeError::Config`] names the setting that makes no sense.
    pub fn new(config: ServerConfig, engine: EngineHandle, text: Arc<TextModel>) -> Result<Self, ServeError> {
        check(&config)?;
        let (wanted, listed) = (config.limits.max_logprobs, engine.limits().max_logprobs);
        if wanted > listed {
            let reason = "must not be over the number that the engine can list";
            return Err(ServeError::Config {
                setting: "max_logprobs",
                reason,
                value: format!("{wanted} (it lists {listed})"),
            });
        }
        let model_name = config.served_model_names.first().cloned().unwrap_or_default();
        Ok(Self { app: Arc::new(App::new(config, &model_name, engine, text)) })
    }

    /// The HTTP service, to be called without a network or served in another way.
    pub fn router(&self) -> Router {
        router::build(self.app.clone())
    }

    /// Refuses new requests from now on; those in flight go on.
    pub fn begin_drain(&self) {
        self.app.begin_drain();
    }

    /// Serves connections of `listener` until `shutdown` resolves and the drain is over, or the engine ends.
    ///
    /// # Errors
    /// The engine failed or hangs.
    pub async fn run(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let name = self.app.model_name();
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, model = %name, "listening on http://{address}");
        }
        let write_timeout = self.app.config().limits.write_timeout;
        let mut outcome = Ok(());
        let end = async { outcome = self.end(shutdown).await };
        connection::serve(&listener, self.router(), write_timeout, end).await;
        outcome
    }

    /// Resolves when no connection should be served any more.
    async fn end(&self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        tokio::select! {
            () = shutdown => {}
            health = self.app.engine().ended() => {
                sleep(FAILURE_GRACE).await;
                return Err(ServeError::EngineFailed(failure(health)));
            }
        }
        self.drain().await
    }

    async fn drain(&self) -> Result<(), ServeError> {
        let limit = self.app.config().drain_timeout;
        tracing::info!(seconds = limit.as_secs_f64(), "draining: no new requests, those in flight go on");
        self.app.begin_drain();
        let started = Instant::now();
        // The engine last: a request in flight may have inputs that it has not been given yet.
        let _ = timeout(limit, self.app.idle()).await;
        let outcome = self.app.engine().drain(limit.saturating_sub(started.elapsed())).await;
        // What the engine has made must still reach the clients; whoever does not read loses it.
        let left = limit.saturating_sub(started.elapsed()).max(DELIVERY_GRACE);
        let delivered = timeout(left, self.app.idle()).await;
        match (outcome, self.app.engine().health()) {
            (_, Health::Failed(message)) => Err(ServeError::EngineFailed(message)),
            (DrainOutcome::Hung, _) => Err(ServeError::EngineHung),
            (outcome, _) => {
                tracing::info!(?outcome, all_delivered = delivered.is_ok(), "drained");
                Ok(())
            }
        }
    }
}

fn failure(health: Health) -> String {
    match health {
        Health::Failed(message) => message,
        Health::Running | Health::Draining | Health::Stopped => "it stopped by itself".to_owned(),
    }
}

fn check(config: &ServerConfig) -> Result<(), ServeError> {
    let refuse = |setting, reason, value: &dyn std::fmt::Debug| {
        Err(ServeError::Config { setting, reason, value: format!("{value:?}") })
    };
    let names = &config.served_model_names;
    if names.is_empty() || names.iter().any(String::is_empty) {
        return refuse("served_model_names", "must have at least one name, none of them empty", names);
    }
    if config.api_keys.iter().any(|key| key.as_bytes().is_empty()) {
        return refuse("api_keys", "must not be empty strings", &config.api_keys);
    }
    let prefix = &config.metrics_prefix;
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || byte == b':';
    let fits =
        prefix.bytes().enumerate().all(|(at, byte)| is_first(byte) || (at > 0 && byte.is_ascii_digit()));
    if prefix.is_empty() || !fits {
        return refuse(
            "metrics_prefix",
            "must be a start of a Prometheus name: letters, digits, '_' and ':'",
            prefix,
        );
    }
    let in_flight = config.limits.max_requests_in_flight;
    if in_flight == 0 || in_flight > u32::MAX as usize {
        return refuse("max_requests_in_flight", "must be from 1 to 4294967295", &in_flight);
    }
    Ok(())
}
