import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Work under a lock. Usage: java Worker.java HOLDFAST LOCK RESOURCE WRITES */
public class Worker {
    static final Duration TTL = Duration.ofSeconds(Long.parseLong(System.getenv().getOrDefault("TTL", "30")));
    static final HttpClient HTTP = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(5)).build();

    /** A lock that is renewed by a thread. Check held before each step of the work, and send the token with each write. */
    static class Lock implements AutoCloseable {
        final String base;
        // Made before it is sent: the same request, sent again, is the same acquisition.
        final String lease = UUID.randomUUID().toString();
        final AtomicBoolean released = new AtomicBoolean();
        String token;
        private volatile long acknowledged; // nanoTime before the newest renewal that worked was sent
        private volatile boolean lost;
        private Thread keeper;

        Lock(String server, String name) {
            base = server + "/v1/locks/" + URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
        }

        void acquire() throws IOException, InterruptedException {
            String body = String.format("{\"lease\":\"%s\",\"ttl\":\"%ds\",\"wait\":\"60s\",\"owner\":\"Worker.java:%d\"}",
                    lease, TTL.toSeconds(), ProcessHandle.current().pid());
            for (;; Thread.sleep(1000)) {
                try {
                    // Keep-Place keeps the turn in the queue until the next request.
                    HttpResponse<String> answer = HTTP.send(request(base, Duration.ofSeconds(90))
                            .header("Holdfast-Keep-Place", "10s").POST(BodyPublishers.ofString(body)).build(), BodyHandlers.ofString());
                    if (answer.statusCode() == 200) {
                        Matcher m = Pattern.compile("\"token\":(\\d+)").matcher(answer.body());
                        if (!m.find()) throw new IllegalStateException(answer.body());
                        token = m.group(1);
                        break;
                    }
                    if (!List.of(409, 429, 503).contains(answer.statusCode())) { // held after the wait; overloaded; unavailable
                        throw new IllegalStateException(answer.body());
                    }
                } catch (IOException e) {
                    System.err.println(e); // it may have worked: try again with the same lease ID
                }
            }
            renew(); // what is left of the TTL counts from the request, which may have waited
            keeper = new Thread(this::keep, "renewals");
            keeper.setDaemon(true);
            keeper.start();
        }

        /** Moves the deadline, which counts from before the request. */
        void renew() throws IOException, InterruptedException {
            long sent = System.nanoTime(); // a clock that is never set
            HttpResponse<String> answer = HTTP.send(request(base + "/leases/" + lease, TTL.dividedBy(3))
                    .PUT(BodyPublishers.ofString("{\"ttl\":\"" + TTL.toSeconds() + "s\"}")).build(), BodyHandlers.ofString());
            switch (answer.statusCode()) {
                case 200 -> acknowledged = sent;
                case 410 -> lost = true;
                default -> System.err.println(answer.body());
            }
        }

        private void keep() {
            Duration wait = TTL.dividedBy(3);
            try {
                while (!released.get() && held()) {
                    Thread.sleep(wait.toMillis());
                    try {
                        renew();
                        wait = TTL.dividedBy(3);
                    } catch (IOException e) {
                        System.err.println(e);
                        wait = TTL.dividedBy(10);
                    }
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt(); // released
            }
        }

        /** 98 % of the TTL: clocks do not run at exactly the same rate. */
        boolean held() {
            return !lost && acknowledged != 0 && System.nanoTime() - acknowledged < TTL.toNanos() / 100 * 98;
        }

        @Override
        public void close() {
            if (released.getAndSet(true)) return;
            if (keeper != null) keeper.interrupt();
            try {
                HTTP.send(request(base + "/leases/" + lease, Duration.ofSeconds(5)).DELETE().build(), BodyHandlers.discarding());
            } catch (IOException | InterruptedException e) {
                System.err.println(e); // the lease ends with its TTL
            }
        }

        private static HttpRequest.Builder request(String url, Duration timeout) {
            return HttpRequest.newBuilder(URI.create(url)).timeout(timeout);
        }
    }

    public static void main(String[] args) throws Exception {
        URI resource = URI.create(args[2]);
        int writes = Integer.parseInt(args[3]);
        try (Lock lock = new Lock(args[0], args[1])) {
            Runtime.getRuntime().addShutdownHook(new Thread(lock::close)); // SIGTERM releases it
            lock.acquire();
            System.out.println("token " + lock.token);
            for (int i = 1; i <= writes; i++) {
                if (!lock.held()) throw new IllegalStateException("the lock was lost");
                int status = HTTP.send(HttpRequest.newBuilder(resource).timeout(Duration.ofSeconds(5)).header("Holdfast-Token", lock.token)
                        .PUT(BodyPublishers.ofString("write " + i)).build(), BodyHandlers.discarding()).statusCode();
                if (status == 412) throw new IllegalStateException("refused: the resource has seen a greater token");
                if (status >= 300) throw new IllegalStateException("the write failed with status " + status);
                Thread.sleep(200);
            }
        }
    }
}
