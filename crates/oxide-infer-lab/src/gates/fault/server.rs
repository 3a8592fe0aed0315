//! The server's binary as a process, with the library that provokes a fault loaded into it.

use super::model::{self, SEQUENCES};
use anyhow::{Context as _, Result, ensure};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the server may take to load the model and to listen.
const START: Duration = Duration::from_secs(60);

/// What the gate needs that is not in its own binary.
#[derive(Clone, Debug)]
pub(crate) struct Supplies {
    /// The server's binary.
    pub(crate) server: PathBuf,
    /// The library that provokes the fault.
    pub(crate) provoker: PathBuf,
}

/// A server that is up.
pub(super) trait Server {
    fn address(&self) -> SocketAddr;
    /// Has the device fail.
    fn provoke(&mut self) -> Result<()>;
    /// Tells it to drain and to end, as a supervisor does.
    fn stop(&mut self) -> Result<()>;
    /// Its exit code, once it has ended.
    fn exit_code(&mut self) -> Result<Option<i32>>;
}

/// A server in a process of its own, which is killed if it has not ended when this is dropped.
pub(super) struct Process {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
    home: Home,
}

/// The model's folder, which nobody else may enter, and which is removed with this.
struct Home(TempDir);

impl Home {
    /// The file whose appearance provokes the fault.
    fn trigger(&self) -> PathBuf {
        self.0.path().join("provoke")
    }
}

impl Process {
    pub(super) fn start(supplies: &Supplies, device: u32) -> Result<Self> {
        let home = Home(tempfile::tempdir()?);
        model::write(home.0.path())?;
        let mut command = Command::new(&supplies.server);
        command.args(["serve", "--weights", "random:1", "--host", "127.0.0.1", "--port", "0", "--no-ui"]);
        command.arg("--model").arg(home.0.path()).args(["--device", &format!("cuda:{device}")]);
        command.args(["--max-sequences", &SEQUENCES.to_string(), "--kv-memory", "2GiB"]);
        let provoker = supplies.provoker.canonicalize();
        let provoker = provoker.with_context(|| format!("opening {}", supplies.provoker.display()))?;
        command.env("LD_PRELOAD", provoker).env("OXIDE_INFER_FAULT_WHEN", home.trigger());
        command.env("OXIDE_INFER_FAULT_DEVICE", device.to_string());
        Self::spawn(command, home)
    }

    fn spawn(mut command: Command, home: Home) -> Result<Self> {
        let program = command.get_program().to_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("starting {}", Path::new(&program).display()))?;
        let stderr = child.stderr.take().context("the server has no standard error")?;
        let (log, (found, address)) = (Arc::new(Mutex::new(String::new())), mpsc::channel());
        let lines = log.clone();
        std::thread::spawn(move || follow(stderr, &lines, &found));
        // The sender is dropped when the server ends, so that this does not wait in vain.
        let Ok(address) = address.recv_timeout(START) else {
            // A server that has ended cannot be killed.
            let _ = child.kill();
            let status = child.wait()?;
            anyhow::bail!("the server did not come up ({status}): {}", tail(&log));
        };
        Ok(Self { child, address, log, home })
    }

    /// What it last wrote to standard error.
    pub(super) fn log(&self) -> String {
        tail(&self.log)
    }

    /// Waits until a line of its log has `words`.
    pub(super) fn says(&self, words: &str, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        while !self.log.lock().unwrap_or_else(PoisonError::into_inner).contains(words) {
            ensure!(Instant::now() < until, "the server's log has no {words:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Keeps a server's lines, and finds the address that it listens on.
fn follow(stderr: impl Read, log: &Mutex<String>, found: &Sender<SocketAddr>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if let Some((_, rest)) = line.split_once("listening on http://")
            && let Some(Ok(address)) = rest.split([' ', '"']).next().map(str::parse)
        {
            // Nobody waits for a second one.
            let _ = found.send(address);
        }
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.push_str(&line);
        log.push('\n');
    }
}

/// The last lines.
fn tail(log: &Mutex<String>) -> String {
    let log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}

impl Server for Process {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn provoke(&mut self) -> Result<()> {
        Ok(std::fs::write(self.home.trigger(), "")?)
    }

    fn stop(&mut self) -> Result<()> {
        let kill = format!("kill -s TERM {}", self.child.id());
        let status = Command::new("sh").args(["-c", &kill]).status()?;
        ensure!(status.success(), "{kill} ended with {status}");
        Ok(())
    }

    fn exit_code(&mut self) -> Result<Option<i32>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        status.code().map(Some).with_context(|| format!("the server was ended by {status}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing is left to do for one that has ended, or that cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Result<Process> {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        Process::spawn(command, Home(tempfile::tempdir().unwrap()))
    }

    fn ended(process: &mut Process) -> i32 {
        loop {
            if let Some(code) = process.exit_code().unwrap() {
                return code;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_process_has_an_address_a_log_and_an_exit_code() {
        let text = "echo 'INFO listening on http://127.0.0.1:4711 model=x' >&2; sleep 0.1; echo provoked >&2; exit 70";
        let mut process = script(text).unwrap();
        assert_eq!(process.address(), "127.0.0.1:4711".parse().unwrap());
        process.says("provoked", Duration::from_secs(5)).unwrap();
        assert_eq!(ended(&mut process), 70);
        assert!(process.says("illegal", Duration::ZERO).unwrap_err().to_string().contains("| provoked"));
        let home = process.home.0.path().to_owned();
        assert!(home.exists());
        drop(process);
        assert!(!home.exists(), "the folder is removed");
    }

    #[test]
    fn a_process_is_stopped_by_sigterm_and_one_that_never_listens_is_an_error() {
        let text =
            "trap 'exit 3' TERM; echo listening on http://127.0.0.1:1 >&2; while :; do sleep 0.01; done";
        let mut process = script(text).unwrap();
        process.stop().unwrap();
        assert_eq!(ended(&mut process), 3);
        let error = script("echo no device >&2; exit 1").err().unwrap().to_string();
        assert!(error.contains("did not come up") && error.contains("no device"), "{error}");
    }
}
