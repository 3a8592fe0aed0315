//! Runs the binary in a clean environment, and servers on loopback for it to talk to.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod hub;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

/// The binary with an environment that holds nothing of the user's: home, caches and configuration are under `home`.
pub(crate) fn oxide_infer(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxide-infer"));
    command.env_clear().env("HOME", home).env("PATH", "/usr/bin:/bin").current_dir(home);
    command
}

/// Runs to the end; gives the exit code, standard output and standard error.
pub(crate) fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// Serves `router` on loopback for the life of the test process and gives its address.
pub(crate) fn serve(router: axum::Router) -> SocketAddr {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    receive.recv().unwrap()
}

/// An address where nothing listens.
pub(crate) fn dead_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
