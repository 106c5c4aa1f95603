# The program alone, on a small Debian: jobs run commands, and commands want a system.
FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package punctual-server

FROM debian:bookworm-slim
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/target/release/punctual /usr/local/bin/punctual
# Nobody's, and without a home: what the node writes lies in /data.
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin punctual \
    && install --directory --owner=punctual --group=punctual --mode=0700 /data
USER 10001:10001
WORKDIR /data
VOLUME /data
ENV PUNCTUAL_DATA_DIR=/data PUNCTUAL_STORE=sled:/data
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["punctual", "run", "ls", "--limit", "1", "--quiet"]
ENTRYPOINT ["punctual"]
CMD ["serve"]
