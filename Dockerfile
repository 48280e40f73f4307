# One image for the gateway, one for the sample API of the compose file:
#
#   docker build -t bouncer/gateway .
#   docker build -t bouncer/weather-api --target weather-api .
#
# A static binary on an empty base: no shell, no package manager, nothing to
# log in to. Certificates of public authorities are copied in for upstreams and
# Redis over TLS.

FROM golang:1.26 AS build
WORKDIR /src
# Modules first, so that a change of code does not download them again.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
# The tag puts the time zone database into the binary; an empty base has none.
RUN CGO_ENABLED=0 go build -trimpath -tags timetzdata -ldflags "-s -w -X main.version=${VERSION}" -o /out/gateway ./cmd/gateway \
 && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o /out/weather-api ./examples/weather-api

FROM scratch AS weather-api
COPY --from=build /out/weather-api /weather-api
USER 65532:65532
EXPOSE 9001
ENTRYPOINT ["/weather-api", "-listen", ":9001"]

FROM scratch AS gateway
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/gateway /gateway
# Nobody: it needs no rights, and no port below 1024.
USER 65532:65532
# routes.yaml, plans.yaml and keys.yaml are mounted here, as a directory: a
# single mounted file is not replaced when an editor renames a new one over it.
WORKDIR /etc/gateway
EXPOSE 8080 9090
# No CMD: `run` is the default command, and what stands behind the image's name
# goes to the gateway, as in `docker run … bouncer/gateway check`.
ENTRYPOINT ["/gateway"]
