//! Real connections: encrypted ones, and receivers that misbehave.

use punctual_server::outbound::{Allowed, ControlPlane, Pattern};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::*;
use punctual::job::spec::NotifyEvent;

/// A certificate for `localhost`, for a hundred years; its key is beside it for all to see.
fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(include_bytes!("../outbound/testdata/cert.pem")).unwrap()
}

fn webhooks(allow: &[String], believes: bool) -> Webhooks {
    let patterns = allow.iter().map(|text| Pattern::parse(text).unwrap());
    let ours = ControlPlane::default();
    let allowed = Allowed::named("--notify-allow", patterns.collect(), ours);
    let roots = if believes {
        vec![certificate()]
    } else {
        Vec::new()
    };
    let client = Client::believing(allowed, roots).unwrap();
    Webhooks::new(client, Some(b"s".to_vec()), Arc::new(Metrics::new()))
}

fn message(webhook: String) -> Message {
    Message {
        id: "j@1.1.failed.7".into(),
        event: NotifyEvent::Failed,
        webhook,
        body: b"{}".to_vec(),
    }
}

/// Answers one request with this, and hands out what it was asked.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, with: &str) -> String {
    let mut asked = Vec::new();
    while !asked.ends_with(b"{}") {
        let mut some = [0; 1_024];
        let n = stream.read(&mut some).await.unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&asked));
        asked.extend_from_slice(&some[..n]);
    }
    stream.write_all(with.as_bytes()).await.unwrap();
    let _ = stream.shutdown().await;
    String::from_utf8(asked).unwrap()
}

#[tokio::test]
async fn an_encrypted_receiver_must_be_whom_it_says() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let key =
        PrivateKeyDer::from_pem_slice(include_bytes!("../outbound/testdata/key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let receiver = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                return answer(stream, "HTTP/1.1 204 No Content\r\n\r\n").await;
            }
        }
    });
    let allow = [format!("localhost:{port}"), format!("127.0.0.1:{port}")];
    let name = message(format!("https://localhost:{port}/hook?a=1"));
    let refused = webhooks(&allow, false).send(&name).await.unwrap_err();
    assert!(refused.to_string().contains("no encryption"), "{refused}");
    // The certificate is for another name.
    let address = message(format!("https://127.0.0.1:{port}/"));
    let refused = webhooks(&allow, true).send(&address).await.unwrap_err();
    assert!(refused.to_string().contains("no encryption"), "{refused}");
    webhooks(&allow, true).send(&name).await.unwrap();
    let asked = receiver.await.unwrap();
    assert!(asked.starts_with("POST /hook?a=1 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("punctual-signature: sha256="), "{asked}");
    assert!(
        asked.contains(&format!("host: localhost:{port}\r\n")),
        "{asked}"
    );
}

#[tokio::test]
async fn only_a_good_answer_counts_and_none_leads_elsewhere() {
    for (with, taken) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
        ("HTTP/1.1 202 Accepted\r\ncontent-length: 99\r\n\r\n", true),
        (
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\n\r\n",
            false,
        ),
        ("HTTP/1.1 500 Internal Server Error\r\n\r\n", false),
        ("nonsense\r\n\r\n", false),
        ("", false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let receiver = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            answer(stream, with).await
        });
        let url = format!("http://127.0.0.1:{port}/");
        let webhooks = webhooks(&[format!("http://127.0.0.1:{port}")], false);
        let sent = webhooks.send(&message(url)).await;
        assert_eq!(sent.is_ok(), taken, "{with}: {sent:?}");
        receiver.await.unwrap();
    }
}

#[test]
fn an_empty_secret_is_refused_and_the_last_newline_is_none_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    for (text, secret) in [("", None), ("\n", None), ("a b \r\n", Some(&b"a b "[..]))] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(secret_of_file(&path).ok().as_deref(), secret);
    }
    assert!(secret_of_file(&dir.path().join("none")).is_err());
}
