# The image of berth: one static binary, no shell, no root.
#   docker build -t berth .
# For another architecture: docker buildx build --platform=linux/arm64 -t berth .

FROM rust:1.95.0-slim-bookworm AS build
# ring compiles C code for musl.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates musl-tools \
    && rm -rf /var/lib/apt/lists/*
# The image's own toolchain, without the extra components that rust-toolchain.toml lists for development.
ENV RUSTUP_TOOLCHAIN=1.95.0
RUN rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /berth
COPY . .
ENV CC_x86_64_unknown_linux_musl=musl-gcc \
    CC_aarch64_unknown_linux_musl=musl-gcc
RUN target="$(uname -m)-unknown-linux-musl" \
    && cargo build --locked --profile dist --bin berth --target "$target" \
    && install -D "target/$target/dist/berth" /out/berth

FROM scratch
# For API servers with a certificate of a public CA; in a cluster the service account has the CA.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/berth /berth
# Numeric, so that Kubernetes can check `runAsNonRoot`.
USER 65532:65532
EXPOSE 10261
ENTRYPOINT ["/berth"]
CMD ["run"]
