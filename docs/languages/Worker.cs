// Work under a lock. Usage: dotnet run Worker.cs HOLDFAST LOCK RESOURCE WRITES
using System.Diagnostics;
using System.Net;
using System.Runtime.InteropServices;
using System.Text.Json;

using var stop = new CancellationTokenSource();
using var term = PosixSignalRegistration.Create(PosixSignal.SIGTERM, context =>
{
    context.Cancel = true; // the lock is released on the way out
    stop.Cancel();
});
try
{
    await Work();
    return 0;
}
catch (Exception e) // an exception that nothing catches would not release the lock
{
    Console.Error.WriteLine(e.Message);
    return 1;
}

async Task Work()
{
    var resource = args[2];
    await using var held = new Lock(args[0], args[1]);
    await held.AcquireAsync(stop.Token);
    Console.WriteLine($"token {held.Token}");
    using var work = CancellationTokenSource.CreateLinkedTokenSource(stop.Token, held.Lost);
    for (var i = 1; i <= int.Parse(args[3]); i++)
    {
        if (!held.IsHeld) throw new InvalidOperationException("the lock was lost");
        using var write = new HttpRequestMessage(HttpMethod.Put, resource) { Content = new StringContent($"write {i}") };
        write.Headers.Add("Holdfast-Token", held.Token);
        using var answer = await Lock.Http.SendAsync(write, work.Token);
        if (answer.StatusCode == HttpStatusCode.PreconditionFailed)
            throw new InvalidOperationException("refused: the resource has seen a greater token");
        answer.EnsureSuccessStatusCode();
        await Task.Delay(200, work.Token);
    }
}

/// <summary>A lock that is renewed in the background.</summary>
sealed class Lock(string server, string name) : IAsyncDisposable
{
    public static readonly HttpClient Http = new() { Timeout = Timeout.InfiniteTimeSpan };
    static readonly TimeSpan Ttl = TimeSpan.FromSeconds(int.Parse(Environment.GetEnvironmentVariable("TTL") ?? "30"));

    readonly string url = $"{server}/v1/locks/{Uri.EscapeDataString(name)}";
    // Made before it is sent: the same request, sent again, is the same acquisition.
    readonly string lease = Guid.NewGuid().ToString();
    readonly CancellationTokenSource lost = new(), released = new();
    long acknowledged; // the timestamp before the newest renewal that worked was sent
    Task keeper = Task.CompletedTask;

    public string Token { get; private set; } = "";

    /// <summary>Ends when the lock is lost. Give it to every request of the work.</summary>
    public CancellationToken Lost => lost.Token;

    /// <summary>98 % of the TTL: clocks do not run at exactly the same rate.</summary>
    public bool IsHeld => !lost.IsCancellationRequested && Volatile.Read(ref acknowledged) is var sent and not 0 && Stopwatch.GetElapsedTime(sent) < Ttl * 0.98;

    public async Task AcquireAsync(CancellationToken stop)
    {
        var body = JsonSerializer.Serialize(new { lease, ttl = $"{Ttl.TotalSeconds}s", wait = "60s", owner = $"Worker.cs:{Environment.ProcessId}" });
        for (; ; await Task.Delay(1000, stop))
        {
            try
            {
                // Keep-Place keeps the turn in the queue until the next request.
                var (status, text) = await Call(HttpMethod.Post, url, body, TimeSpan.FromSeconds(90), stop, ("Holdfast-Keep-Place", "10s"));
                if (status == 200)
                {
                    using var json = JsonDocument.Parse(text);
                    Token = json.RootElement.GetProperty("token").GetRawText();
                    break;
                }
                if (status is not (409 or 429 or 503)) throw new InvalidOperationException(text); // held after the wait; overloaded; unavailable
            }
            catch (Exception e) when (Unanswered(e) && !stop.IsCancellationRequested)
            {
                Console.Error.WriteLine(e.Message); // it may have worked: try again with the same lease ID
            }
        }
        await RenewAsync(); // what is left of the TTL counts from the request, which may have waited
        keeper = KeepAsync();
    }

    /// <summary>Moves the deadline, which counts from before the request.</summary>
    async Task RenewAsync()
    {
        var sent = Stopwatch.GetTimestamp(); // a clock that is never set
        var body = JsonSerializer.Serialize(new { ttl = $"{Ttl.TotalSeconds}s" });
        var (status, text) = await Call(HttpMethod.Put, $"{url}/leases/{lease}", body, Ttl / 3, released.Token);
        if (status == 200)
        {
            Volatile.Write(ref acknowledged, sent);
            lost.CancelAfter(Ttl * 0.98 - Stopwatch.GetElapsedTime(sent));
        }
        else if (status == 410) lost.Cancel();
        else Console.Error.WriteLine(text);
    }

    async Task KeepAsync()
    {
        var wait = Ttl / 3;
        while (IsHeld)
        {
            try
            {
                await Task.Delay(wait, released.Token);
                await RenewAsync();
                wait = Ttl / 3;
            }
            catch (Exception e) when (Unanswered(e))
            {
                if (released.IsCancellationRequested) return;
                Console.Error.WriteLine(e.Message);
                wait = Ttl / 10;
            }
        }
        lost.Cancel();
    }

    public async ValueTask DisposeAsync()
    {
        released.Cancel();
        await keeper;
        try
        {
            await Call(HttpMethod.Delete, $"{url}/leases/{lease}", null, TimeSpan.FromSeconds(5), default);
        }
        catch (Exception e) when (Unanswered(e))
        {
            Console.Error.WriteLine(e.Message); // the lease ends with its TTL
        }
    }

    static bool Unanswered(Exception e) => e is HttpRequestException or OperationCanceledException;

    static async Task<(int Status, string Text)> Call(HttpMethod method, string url, string? body, TimeSpan timeout,
        CancellationToken stop, params (string Name, string Value)[] headers)
    {
        using var limit = CancellationTokenSource.CreateLinkedTokenSource(stop);
        limit.CancelAfter(timeout);
        using var request = new HttpRequestMessage(method, url);
        if (body != null) request.Content = new StringContent(body);
        foreach (var (name, value) in headers) request.Headers.Add(name, value);
        using var answer = await Http.SendAsync(request, limit.Token);
        return ((int)answer.StatusCode, await answer.Content.ReadAsStringAsync(limit.Token));
    }
}
