//! The gate over a server in this process, whose engine runs on a simulated device.

use super::*;
use client::ApiError;
use oxide_infer_cuda::artifact::{Registry, Target};
use oxide_infer_cuda::driver::simulated::SimulatedDriver;
use oxide_infer_cuda::runtime::Context;
use oxide_infer_engine::cuda::{CudaOptions, load_cuda_on};
use oxide_infer_engine::{Engine, EngineConfig, ModelSource};
use oxide_infer_server::text::{TextModel, TextOptions};
use oxide_infer_server::{ServeError, ServerConfig, listen};
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server whose device fails when it is told to.
struct Simulated {
    driver: Arc<SimulatedDriver>,
    runtime: Runtime,
    address: SocketAddr,
    shutdown: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<Result<(), ServeError>>>,
    /// The code that the driver fails with.
    code: u32,
}

impl Simulated {
    fn start(code: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        model::write(dir.path()).unwrap();
        let driver = SimulatedDriver::new();
        driver.set_memory(8 << 30);
        let context = Context::primary_on(driver.clone(), 0).unwrap();
        let options =
            CudaOptions { max_sequences: SEQUENCES, kv_memory: Some(2 << 30), ..CudaOptions::default() };
        let source = ModelSource::open_random(dir.path(), 1).unwrap();
        let executor = load_cuda_on(&context, &source, &options, &mut |_| ()).unwrap();
        let engine = Engine::start(Box::new(executor), EngineConfig::default()).unwrap();
        let text = Arc::new(TextModel::from_dir(dir.path(), &TextOptions::default()).unwrap());
        let config = ServerConfig { port: 0, ..ServerConfig::new("tiny") };
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(listen(&config)).unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, signal) = oneshot::channel::<()>();
        let server = oxide_infer_server::Server::new(config, engine, text).unwrap();
        let served = runtime.spawn(server.run(listener, async move { signal.await.unwrap_or(()) }));
        Self { driver, runtime, address, shutdown: Some(shutdown), served: Some(served), code }
    }
}

impl Server for Simulated {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn provoke(&mut self) -> Result<()> {
        self.driver.break_device(self.code);
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.shutdown.take().unwrap().send(()).unwrap();
        Ok(())
    }

    /// As the binary maps it.
    fn exit_code(&mut self) -> Result<Option<i32>> {
        let Some(served) = self.served.take_if(|served| served.is_finished()) else { return Ok(None) };
        Ok(Some(match self.runtime.block_on(served)? {
            Ok(()) => 0,
            Err(ServeError::EngineFailed(_)) => ENGINE_FAILED,
            Err(error) => return Err(error.into()),
        }))
    }
}

#[test]
fn a_simulated_device_that_is_lost_passes_and_so_does_one_that_is_not() {
    let mut finding = Finding::of("fault");
    lose_device(&mut Simulated::start(700), &mut finding).unwrap();
    assert!(finding.is_pass(), "{finding}");
    assert_eq!(finding.passed["a request in flight is told of the fault"], REQUESTS);
    assert_eq!(finding.passed["a new request is refused"], 2);
    assert!(finding.measured["seconds until the process ended"] < 5.0, "{finding}");

    let mut finding = Finding::of("fault");
    end_cleanly(&mut Simulated::start(700), &mut finding).unwrap();
    assert!(finding.is_pass(), "{finding}");
    assert_eq!(finding.passed["a request without a fault is answered"], REQUESTS);
}

#[test]
fn the_metrics_of_a_server_on_a_device_name_its_artifacts() {
    let server = Simulated::start(700);
    let metrics = get(server.address(), "/metrics").unwrap().body;
    let digest = Registry::embedded(Target::hopper()).unwrap().digest();
    let plan = metrics.lines().find(|line| line.starts_with("oxide_infer_plan_info{")).unwrap();
    assert!(plan.contains(&format!("artifacts=\"{digest}\"")), "{plan}");
}

#[test]
fn a_device_that_is_lost_for_another_reason_does_not_pass() {
    let mut finding = Finding::of("fault");
    lose_device(&mut Simulated::start(719), &mut finding).unwrap();
    let unnamed = finding.failures.iter().filter(|failure| failure.contains("is not named")).count();
    assert_eq!((unnamed, finding.is_pass()), (1 + 2 + REQUESTS, false), "{finding}");
}

#[test]
fn an_answer_must_have_the_error_of_a_failed_engine_and_its_reason() {
    let error = |kind: &str, code: &str, message: &str| Answer {
        status: 503,
        pieces: 0,
        finish_reason: None,
        error: Some(ApiError { message: message.into(), kind: kind.into(), code: code.into() }),
    };
    let good = error(
        "service_unavailable_error",
        "engine_failed",
        "cuEventQuery failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)",
    );
    told(&good).unwrap();
    refused(&good).unwrap();
    let streamed = Answer { status: 200, ..good.clone() };
    told(&streamed).unwrap();
    assert!(refused(&streamed).unwrap_err().to_string().contains("must be 503"));
    let complete = Answer { finish_reason: Some("length".into()), pieces: 3, ..good.clone() };
    assert!(told(&complete).unwrap_err().to_string().contains("the end"));
    let other = error("server_error", "internal", FAULT);
    assert!(told(&other).unwrap_err().to_string().contains("must be service_unavailable_error"));
    assert!(told(&error("service_unavailable_error", "engine_failed", "lost")).is_err());
    let silent = Answer { error: None, ..complete };
    assert!(told(&silent).is_err() && whole(&silent).is_ok() && whole(&good).is_err());
}
