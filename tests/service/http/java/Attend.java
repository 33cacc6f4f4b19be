import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.concurrent.CompletableFuture;

/** Posts a body to a URL with the defaults of Java's HttpClient: once, again, without a declared length, and eight at once. */
public class Attend {
    public static void main(String[] arguments) throws Exception {
        URI uri = URI.create(arguments[0]);
        HttpClient client = HttpClient.newHttpClient();
        HttpRequest request = HttpRequest.newBuilder(uri)
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(arguments[1]))
            .build();
        HttpRequest chunked = HttpRequest.newBuilder(uri)
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.fromPublisher(HttpRequest.BodyPublishers.ofString(arguments[1])))
            .build();
        print(client.send(request, HttpResponse.BodyHandlers.ofString()));
        print(client.send(request, HttpResponse.BodyHandlers.ofString()));
        print(client.send(chunked, HttpResponse.BodyHandlers.ofString()));
        CompletableFuture<?>[] all = new CompletableFuture<?>[8];
        for (int i = 0; i < all.length; i++) {
            all[i] = client.sendAsync(request, HttpResponse.BodyHandlers.ofString()).thenAccept(Attend::print);
        }
        CompletableFuture.allOf(all).join();
    }

    static synchronized void print(HttpResponse<String> response) {
        System.out.println(response.statusCode() + " " + response.body());
    }
}
