//! The door's hinges: how many connections are open at once, and for how long nothing may come.
//!
//! What can go wrong here: somebody opens connections and says nothing. Each takes a file
//! descriptor, and runs need those too.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Connections that are open at once. More wait in the system's queue, where they cost us nothing.
pub(super) const MAX_OPEN: usize = 256;
/// How long the head of a request may take, the wait for a further request counted.
const HEAD: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be taken, for want of file descriptors above all.
const NOT_NOW: Duration = Duration::from_secs(1);

/// Answers on `listener` until `stop` ends, then lets open requests finish. Dropped, it drops
/// them.
pub(super) async fn serve(listener: TcpListener, router: Router, stop: impl Future<Output = ()>) {
    let mut stop = pin!(stop);
    let (closing, closed) = watch::channel(());
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = open.join_next() => {}
            accepted = listener.accept(), if open.len() < MAX_OPEN => match accepted {
                Ok((stream, _)) => {
                    open.spawn(connection(stream, router.clone(), closed.clone()));
                }
                // One that went away before its turn is nobody's fault.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::error!(%error, "cannot take a connection");
                    tokio::time::sleep(NOT_NOW).await;
                }
            },
        }
    }
    drop((listener, closing));
    while open.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, router: Router, mut closed: watch::Receiver<()>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Nothing is ever sent: this is the sender's end.
        _ = closed.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}
